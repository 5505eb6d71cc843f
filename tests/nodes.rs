//! Many machines and one queue: state directories of their own, one PostgreSQL, one cache.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::harness::server::{self, Server};
use crate::harness::{Queue, eventually, now, text};

/// Leases as short as they may be, so that tests see them end.
const SHORT: &str = "[node]\nlease = \"10s\"\n";

/// The largest number of exporters that were open at once, by the log of the `mark` exporter.
fn most_at_once(queue: &Queue) -> usize {
    let mut open = BTreeSet::new();
    let mut most = 0;
    for line in queue.scratch("LOG") {
        let (event, run) = line.split_once(' ').expect("an event and a run");
        if event == "start" {
            assert!(open.insert(run.to_owned()), "{run} started twice");
        } else {
            assert!(open.remove(run), "{run} ended without a start");
        }
        most = most.max(open.len());
    }
    most
}

fn set_seconds(queue: &Queue, seconds: &str) {
    fs::write(queue.path("S"), seconds).expect("a note for the fake exporter");
}

#[test]
fn machines_share_a_queue_and_each_title_is_made_once() {
    let first = Queue::on(server::shared(), "");
    let (second, third) = (Queue::beside(&first), Queue::beside(&first));
    set_seconds(&first, "0.1");
    for title in 0..30 {
        [&first, &second, &third][title % 3].request("mark", &format!("Book {title}"));
    }
    let ticks: Vec<_> = [&first, &second, &third].map(|node| node.spawn(["dispatch", "--wait"])).into();
    for tick in ticks {
        tick.wait().code(0).silent();
    }
    assert_eq!(first.published().len(), 30);
    assert!(most_at_once(&first) <= 6, "two slots a machine");
    let starts = first.scratch("STARTS");
    assert_eq!((starts.len(), starts.iter().collect::<BTreeSet<_>>().len()), (30, 30), "each once");
    assert_eq!(first.sql("SELECT count(DISTINCT node) FROM runs"), ["3"], "all have worked");
    assert_eq!(first.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(third.state("mark", "Book 0"), "ready", "every machine sees every file");
    let nodes = second.run(["--json", "nodes"]).code(0).lines();
    assert_eq!(nodes.len(), 3);
    assert!(nodes.iter().all(|node| node["slots"] == 2 && node["silent_seconds"].as_u64() < Some(60)), "{nodes:?}");
    for node in [&first, &second, &third] {
        node.assert_quiet();
    }
}

#[test]
fn the_bound_over_all_machines_is_exact() {
    let first = Queue::on(server::shared(), "");
    first.reconfigure("slots = 2", "slots = 3\nmax_running = 2");
    let second = Queue::beside(&first);
    set_seconds(&first, "0.1");
    for title in 0..16 {
        first.request("mark", &format!("Book {title}"));
    }
    let all_made = || first.published().len() == 16;
    let mut ticks = Vec::new();
    eventually("all are made", || {
        ticks.extend([&first, &second].map(|node| node.spawn(["dispatch", "--wait"])));
        for tick in ticks.drain(..) {
            tick.wait().code(0);
        }
        all_made().then_some(())
    });
    assert_eq!(most_at_once(&first), 2);
}

/// Kills all of a machine's processes, as a power cut does.
fn power_off(node: &Queue) {
    eventually("all of its processes are gone", || {
        let left = node.processes();
        for process in &left {
            process.kill("KILL");
        }
        left.is_empty().then_some(())
    });
}

#[test]
fn a_lost_machine_loses_its_jobs_when_their_lease_has_ended() {
    let first = Queue::on(server::shared(), SHORT);
    let second = Queue::beside(&first);
    set_seconds(&first, "600");
    first.request("mark", "A Book");
    first.run(["dispatch"]).code(0);
    first.await_state("mark", "A Book", "started");
    eventually("its exporter runs", || first.scratch("LOG").first().cloned());
    let begun = now();
    power_off(&first);
    set_seconds(&first, "0");
    second.dispatch().code(0);
    assert_eq!(second.state("mark", "A Book"), "started", "its lease has not ended");
    eventually("the other machine has made it", || {
        second.dispatch().code(0);
        (second.state("mark", "A Book") == "ready").then_some(())
    });
    assert!(begun.elapsed() > Duration::from_secs(5), "the lease was waited for");
    let outcomes = "SELECT outcome FROM runs ORDER BY finished_at";
    assert_eq!(second.sql(outcomes), ["interrupted", "ready"], "counted once");
    // The lost machine comes back and finds nothing to do.
    first.dispatch().code(0).silent();
    assert_eq!(first.sql(outcomes), ["interrupted", "ready"]);
    first.assert_quiet();
    second.assert_quiet();
}

#[test]
fn a_machine_that_was_frozen_beyond_its_lease_publishes_nothing() {
    let first = Queue::on(server::shared(), SHORT);
    let second = Queue::beside(&first);
    set_seconds(&first, "1");
    first.request("mark", "A Book");
    first.run(["dispatch"]).code(0);
    eventually("its exporter runs", || first.scratch("LOG").first().cloned());
    let frozen = first.workers();
    for worker in &frozen {
        worker.kill("STOP");
    }
    eventually("the frozen machine's exporter has made its file", || {
        first.scratch("LOG").iter().any(|line| line.starts_with("end")).then_some(())
    });
    eventually("the other machine has made it", || {
        second.dispatch().code(0);
        (second.state("mark", "A Book") == "ready").then_some(())
    });
    let published = || first.published().iter().map(|file| fs::metadata(file).unwrap().ino()).collect::<Vec<_>>();
    let before = published();
    for worker in &frozen {
        worker.kill("CONT");
    }
    eventually("the worker has ended", || first.workers().is_empty().then_some(()));
    assert_eq!(published(), before, "what it made is not published");
    assert_eq!(first.sql("SELECT outcome FROM runs ORDER BY finished_at"), ["interrupted", "ready"]);
    first.dispatch().code(0);
    first.assert_quiet();
}

#[test]
fn an_exporter_is_ended_before_its_lease_when_the_database_is_away() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, SHORT);
    set_seconds(&queue, "600");
    queue.request("slow", "A Book");
    queue.run(["dispatch"]).code(0);
    eventually("its exporter runs", || (!queue.scratch("PIDS").is_empty()).then_some(()));
    server.down();
    let begun = now();
    eventually("the exporter was ended", || queue.exporters().is_empty().then_some(()));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "others may begin after ten seconds, it ended after {took:?}");
    server.up();
    set_seconds(&queue, "0");
    eventually("it is made when the database is back", || {
        queue.dispatch();
        (queue.state("slow", "A Book") == "ready").then_some(())
    });
}

#[test]
fn what_a_dead_worker_left_is_ended_while_the_database_is_away() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    set_seconds(&queue, "600");
    queue.request("slow", "A Book");
    queue.run(["dispatch"]).code(0);
    eventually("its exporter runs", || (!queue.scratch("PIDS").is_empty()).then_some(()));
    server.down();
    for worker in queue.workers() {
        worker.slay();
    }
    assert!(!queue.exporters().is_empty(), "the exporter has outlived its worker");
    queue.run(["dispatch"]).code(75);
    assert!(queue.exporters().is_empty(), "the job may be another machine's soon");
    server.up();
    set_seconds(&queue, "0");
    queue.dispatch().code(0);
    assert_eq!(queue.state("slow", "A Book"), "ready");
    assert_eq!(queue.sql("SELECT outcome FROM runs ORDER BY finished_at"), ["interrupted", "ready"]);
    queue.assert_quiet();
}

#[test]
fn a_server_that_restarts_during_an_export_disturbs_nothing() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    set_seconds(&queue, "3");
    queue.request("mark", "A Book");
    let tick = queue.spawn(["dispatch", "--wait"]);
    eventually("its exporter runs", || queue.scratch("LOG").first().cloned());
    server.down();
    server.up();
    // A tick of the same machine sees that its worker lives.
    queue.run(["dispatch"]).code(0);
    tick.wait().code(0);
    assert_eq!(queue.state("mark", "A Book"), "ready");
    assert_eq!(most_at_once(&queue), 1);
    assert_eq!(queue.scratch("STARTS").len(), 1);
}

#[test]
fn what_is_made_while_the_database_is_away_is_published_when_it_is_back() {
    let server = Server::own(&[]);
    let mut queue = Queue::on(server, "");
    set_seconds(&queue, "1");
    queue.set("EXPORT_QUEUE_FAULT", "publish.before_lock=delay:1");
    queue.set("EXPORT_QUEUE_FAULT_HITS", &queue.path("HITS").to_string_lossy());
    for stop in [false, true] {
        let title = format!("stopped {stop}");
        queue.request("mark", &title);
        let tick = queue.spawn(["dispatch", "--wait"]);
        eventually("its exporter runs", || queue.scratch("LOG").iter().any(|line| line.contains(&title)).then_some(()));
        server.down();
        let hits = usize::from(stop) + 1;
        eventually("it is made", || (queue.scratch("HITS").len() == hits).then_some(()));
        // Longer than one statement is tried for (10 s), and shorter than the lease.
        let ended = now();
        if stop {
            queue.workers().iter().for_each(|worker| worker.kill("TERM"));
        }
        eventually("that is over", || (ended.elapsed() > Duration::from_secs(13)).then_some(()));
        assert_eq!(queue.workers().is_empty(), stop, "only who is asked to end does not wait");
        server.up();
        tick.wait();
        eventually("it is ready", || {
            queue.dispatch();
            (queue.state("mark", &title) == "ready").then_some(())
        });
    }
    let starts = queue.scratch("STARTS");
    assert_eq!(starts.iter().filter(|line| line.contains("stopped false")).count(), 1, "{starts:?}");
    assert_eq!(most_at_once(&queue), 1);
    queue.assert_quiet();
}

#[test]
fn every_session_may_be_killed_and_none_is_idle_in_a_transaction() {
    let server = Server::own(&["-c", "idle_in_transaction_session_timeout=2s"]);
    let queue = Queue::on(server, "");
    set_seconds(&queue, "3");
    queue.request("mark", "A Book");
    let mut tick = queue.spawn(["dispatch", "--wait"]);
    eventually("its exporter runs", || queue.scratch("LOG").first().cloned());
    let others = "FROM pg_stat_activity WHERE application_name = 'export-queue'";
    let mut killed = 0;
    eventually("its exporter has ended", || {
        let open = queue
            .sql(&format!("SELECT query {others} AND state LIKE 'idle in%' AND state_change < now() - interval '1s'"));
        assert!(open.is_empty(), "a transaction is open while an exporter runs: {open:?}");
        killed += queue.sql(&format!("SELECT pg_terminate_backend(pid) {others}")).len();
        (queue.scratch("LOG").len() == 2).then_some(())
    });
    eventually("it is ready, if not by this tick then by another", || {
        if tick.is_over() {
            tick = queue.spawn(["dispatch", "--wait"]);
        }
        (queue.state("mark", "A Book") == "ready").then_some(())
    });
    assert!(killed > 0, "nothing was killed");
    assert_eq!(queue.scratch("STARTS").len(), 1);
}

#[test]
fn clocks_that_are_hours_apart_change_nothing() {
    let mut first = Queue::on(server::shared(), SHORT);
    let mut second = Queue::beside(&first);
    first.set("EXPORT_QUEUE_TEST_CLOCK", "-3600");
    second.set("EXPORT_QUEUE_TEST_CLOCK", "3600");
    set_seconds(&first, "12");
    first.request("mark", "A Book");
    let tick = first.spawn(["dispatch", "--wait"]);
    eventually("its exporter runs", || first.scratch("LOG").first().cloned());
    // The lease is renewed by the database's clock: the machine of the future takes nothing over.
    let begun = now();
    while begun.elapsed() < Duration::from_secs(11) {
        second.dispatch().code(0);
        assert_eq!(second.state("mark", "A Book"), "started");
    }
    tick.wait().code(0);
    for node in [&first, &second] {
        let ready = node.status("mark", "A Book");
        assert_eq!(ready["state"], "ready");
        let published = text(&ready["published_at"]).parse::<chrono::DateTime<chrono::Utc>>().expect("a time");
        #[expect(clippy::disallowed_methods, reason = "the clock of the database is that of this machine")]
        let off = (chrono::Utc::now() - published).num_seconds().abs();
        assert!(off < 60, "published {off} s from now");
    }
    assert_eq!(first.scratch("STARTS").len(), 1);
}

#[test]
fn a_primary_that_may_only_be_read_means_later() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "Ready");
    queue.dispatch().code(0);
    queue.request("ok", "Waiting");
    server.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("postgres", "SELECT pg_reload_conf()");
    let said = eventually("it may only be read", || {
        Some(queue.run(["request", "--format", "ok", "Other"])).filter(|said| said.code == 75)
    });
    assert!(said.err.contains("may only be read"), "{}", said.err);
    assert_eq!((queue.state("ok", "Ready"), queue.state("ok", "Waiting")), ("ready".into(), "queued".into()));
    server.sql("postgres", "ALTER SYSTEM RESET default_transaction_read_only");
    server.sql("postgres", "SELECT pg_reload_conf()");
    eventually("it goes on", || {
        queue.dispatch();
        (queue.state("ok", "Waiting") == "ready").then_some(())
    });
}

#[test]
fn ten_thousand_lost_jobs_are_all_found_and_counted_once() {
    let queue = Queue::on(server::shared(), "");
    queue.run(["init"]).code(0);
    queue.run(["pause"]).code(0);
    queue.sql(
        "INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at, token, \
         last_run, node, slot, worker, lease_until, started_at, deadline_at, attempts) \
         SELECT 'Book ' || n, 'en', 'default', 'ok', '{}', 'book-' || n || '.txt', 'default', 10, n, 1, 1, \
         lpad(to_hex(n), 20, '0'), lpad(to_hex(n), 20, '0'), 'gone', 'default.0', '7.8', 1, 1, 2, 1 \
         FROM generate_series(1, 10000) AS n",
    );
    let mut ticks = 0;
    eventually("all are taken over", || {
        queue.run(["dispatch"]).code(0);
        ticks += 1;
        (queue.sql("SELECT count(*) FROM jobs WHERE state = 1") == ["0"]).then_some(())
    });
    assert_eq!(queue.sql("SELECT state, interruptions, count(*) FROM jobs GROUP BY 1, 2"), ["0|1|10000"]);
    assert_eq!(queue.sql("SELECT outcome, count(*) FROM runs GROUP BY 1"), ["interrupted|10000"]);
    println!("10,000 lost jobs in {ticks} ticks");
}

#[test]
fn a_pooler_in_transaction_mode_may_stand_between() {
    let server = Server::own(&[]);
    let pooler = server.pooler(2);
    let queue = Queue::on(server, "");
    let direct = format!("?host={}", server.dir().display());
    queue.reconfigure(&direct, &format!("?host={}&port=6432", pooler.dir().display()));
    let second = Queue::beside(&queue);
    // Ten first starts at once, and one of them is killed in the middle.
    let mut starts: Vec<_> =
        (0..10).map(|n| [&queue, &second][n % 2].spawn(["request", "--format", "ok", &format!("First {n}")])).collect();
    starts.remove(4).signal("KILL");
    for start in starts {
        start.wait().code(3);
    }
    std::thread::scope(|scope| {
        for n in 0..10 {
            let node = [&queue, &second][n % 2];
            scope.spawn(move || {
                for round in 0..5 {
                    let title = format!("Book {}", (n * 3 + round) % 20);
                    let asked = node.run(["--exit-zero", "request", "--format", "ok", &title]);
                    assert_eq!(asked.code, 0, "{asked:?}");
                    node.run(["--exit-zero", "status", "--format", "ok", &title]).code(0);
                    if n < 2 {
                        node.run(["dispatch"]).code(0);
                    }
                }
            });
        }
    });
    eventually("all are made", || {
        queue.dispatch().code(0);
        (queue.sql("SELECT count(*) FROM jobs") == ["0"]).then_some(())
    });
    let starts = queue.scratch("STARTS");
    assert_eq!(starts.len(), starts.iter().collect::<BTreeSet<_>>().len(), "each was made once");
    assert!(starts.len() >= 29);
}

#[test]
fn a_request_on_one_machine_starts_at_once_on_another() {
    let first = Queue::on(server::shared(), "");
    let second = Queue::beside(&first);
    first.run(["dispatch"]).code(0);
    let dispatcher = first.spawn(["dispatch", "--for", "60s"]);
    eventually("it listens", || (first.sql(LISTENS) == ["1"]).then_some(()));
    let mut took = Vec::new();
    for n in 0..9 {
        let title = format!("Book {n}");
        let begun = now();
        second.request("ok", &title);
        eventually("it has started", || first.scratch("STARTS").contains(&title).then_some(()));
        took.push(begun.elapsed());
    }
    took.sort();
    println!("from request to exporter on another machine: {took:?}");
    // By looking each second the median would be half a second and more.
    assert!(took[4] < Duration::from_millis(450), "{took:?}");
    drop(dispatcher);
}

/// How many sessions of this database listen.
const LISTENS: &str = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%LISTEN%' AND datname = current_database() \
                       AND pid <> pg_backend_pid()";

#[test]
fn a_queue_takes_exactly_as_many_as_it_may_from_many_at_once() {
    const CALLERS: usize = 16;
    const EACH: usize = 4;
    let first = Queue::on(server::shared(), "");
    first.reconfigure("slots = 2", "slots = 2\nmax_queued = 23\nmax_queued_per_client = 5");
    let second = Queue::beside(&first);
    first.run(["init"]).code(0);
    let ask = |format: &'static str, client: Option<usize>| {
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let node = [&first, &second][caller % 2];
                    let client = client.map(|clients| format!("--client=c{}", caller % clients));
                    scope.spawn(move || {
                        let titles = (0..EACH).map(|n| format!("Book {caller} {n}"));
                        let codes = titles.map(|title| {
                            let args = ["request", "--format", format, &title].map(str::to_owned);
                            node.run(args.into_iter().chain(client.clone())).code
                        });
                        codes.collect::<Vec<_>>()
                    })
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect::<Vec<_>>()
        })
    };
    for round in 0..3 {
        let codes = ask("ok", None);
        assert_eq!(codes.iter().filter(|code| **code == 3).count(), 23, "round {round}: {codes:?}");
        assert!(codes.iter().all(|code| [3, 75].contains(code)), "{codes:?}");
        assert_eq!(first.sql("SELECT count(*) FROM jobs"), ["23"]);
        first.sql("DELETE FROM jobs");
        // Three clients, of whom each may have five.
        let codes = ask("ok", Some(3));
        assert_eq!(codes.iter().filter(|code| **code == 3).count(), 15, "round {round}: {codes:?}");
        assert_eq!(first.sql("SELECT max(n) FROM (SELECT count(*) AS n FROM jobs GROUP BY client) AS c"), ["5"]);
        first.sql("DELETE FROM jobs");
    }
}

#[test]
fn a_batch_of_many_lines_is_one_call() {
    const LINES: usize = 20_000;
    let queue = Queue::on(server::shared(), "");
    queue.run(["init"]).code(0);
    queue.run(["pause"]).code(0);
    let line =
        |n: usize| format!("{{\"title\":\"Book {n}\",\"client\":\"c{}\",\"meta\":{n},\"max-wait\":\"1h\"}}\n", n % 7);
    fs::write(queue.path("batch"), (0..LINES).map(line).collect::<String>()).expect("a file");
    let batch =
        ["request", "--batch"].map(str::to_owned).into_iter().chain([queue.path("batch").display().to_string()]);
    let batch: Vec<String> = batch.collect();
    let begun = now();
    let said = queue.run(&batch).code(0).json();
    let took = begun.elapsed();
    assert_eq!(said["accepted"], LINES);
    let places = "SELECT count(*), count(DISTINCT (client, rank)), count(DISTINCT client) FROM jobs";
    assert_eq!(queue.sql(places), ["20000|20000|7"], "each client's jobs stand one behind the other");
    assert_eq!(queue.sql("SELECT count(*) FROM interests"), [LINES.to_string()]);
    assert_eq!(queue.sql("SELECT meta FROM jobs WHERE title = 'Book 4711'"), ["4711"]);
    let begun = now();
    assert_eq!(queue.run(&batch).code(0).json()["joined"], LINES);
    println!("{LINES} lines: new in {took:?}, joined in {:?}", begun.elapsed());
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn each_end_of_a_job_is_told_by_one_machine_only() {
    let first = Queue::on(server::shared(), "");
    let told = first.path("TOLD").display().to_string();
    let script = format!("sleep 0.05; echo \"$1\" >>{told}");
    let command = format!("[\"sh\", \"-c\", {script:?}, \"told\", \"{{title}}\"]");
    let text = fs::read_to_string(first.path("config.toml")).expect("a configuration");
    first.configure(&format!("{text}[[notify]]\non = [\"ready\"]\ntimeout = \"5s\"\ncommand = {command}\n"));
    let (second, third) = (Queue::beside(&first), Queue::beside(&first));
    for title in 0..30 {
        first.request("ok", &format!("Book {title}"));
    }
    let ticks: Vec<_> = [&first, &second, &third].map(|node| node.spawn(["dispatch", "--wait"])).into();
    for tick in ticks {
        tick.wait().code(0);
    }
    eventually("all are told", || {
        first.dispatch().code(0);
        (first.sql("SELECT count(*) FROM deliveries") == ["0"]).then_some(())
    });
    let told = first.scratch("TOLD");
    assert_eq!((told.len(), told.iter().collect::<BTreeSet<_>>().len()), (30, 30), "each once");
}

#[test]
fn what_a_lost_machine_was_telling_is_told_by_another() {
    let first = Queue::on(server::shared(), "");
    let (told, hang) = (first.path("TOLD").display().to_string(), first.path("HANG").display().to_string());
    fs::write(&hang, "").expect("a note for the listener");
    let script = format!("echo \"$1\" >>{told}; while [ -e {hang} ]; do sleep 0.05; done");
    let command = format!("[\"sh\", \"-c\", {script:?}, \"told\", \"{{title}}\"]");
    let text = fs::read_to_string(first.path("config.toml")).expect("a configuration");
    first.configure(&format!("{text}[[notify]]\non = [\"ready\"]\ntimeout = \"10s\"\ncommand = {command}\n"));
    let second = Queue::beside(&first);
    first.request("ok", "A Book");
    eventually("it is being told", || {
        first.run(["dispatch"]).code(0);
        first.scratch("TOLD").first().cloned()
    });
    second.dispatch().code(0);
    assert_eq!(first.scratch("TOLD").len(), 1, "the other machine leaves it alone");
    power_off(&first);
    fs::remove_file(&hang).expect("the note goes");
    eventually("another machine has told it", || {
        second.dispatch().code(0);
        (second.sql("SELECT count(*) FROM deliveries") == ["0"]).then_some(())
    });
    assert_eq!(first.scratch("TOLD"), ["A Book", "A Book"]);
}

#[test]
fn how_long_a_job_waits_is_said_by_the_slots_of_all_machines() {
    let first = Queue::on(server::shared(), "");
    let second = Queue::beside(&first);
    set_seconds(&first, "600");
    for title in ["One", "Two"] {
        first.request("mark", title);
    }
    first.run(["dispatch"]).code(0);
    eventually("both exporters run", || (first.scratch("LOG").len() == 2).then_some(()));
    assert_eq!(first.request("mark", "Three")["reason"], "no_free_slot", "there is one machine");
    // Another machine shows that it is there, and has slots to spare.
    second.run(["pause"]).code(0);
    second.run(["dispatch"]).code(0);
    second.run(["resume"]).code(0);
    assert_eq!(first.status("mark", "Three")["reason"], serde_json::Value::Null);
    let lanes = first.run(["--json", "nodes"]).code(0).lines();
    assert!(lanes.len() == 2 && lanes.iter().all(|node| node["lanes"]["default"] == 2), "{lanes:?}");
    // The bound over all machines bounds that too.
    first.reconfigure("slots = 2", "slots = 2\nmax_running = 2");
    assert_eq!(first.status("mark", "Three")["reason"], "no_free_slot");
    first.reconfigure("max_running = 2", "max_running = 3");
    assert_eq!(first.status("mark", "Three")["reason"], serde_json::Value::Null);
    // A machine of an older program does not say how many it has in each queue: as many as this one.
    first.sql("UPDATE nodes SET lanes = NULL");
    assert_eq!(first.status("mark", "Three")["reason"], serde_json::Value::Null);
    // A machine that has not been seen for long does not count, and whoever dispatches elsewhere dispatches.
    let idle = "WHERE id NOT IN (SELECT node FROM jobs WHERE state = 1)";
    first.sql(&format!("UPDATE nodes SET last_seen = last_seen - 3600000 {idle}"));
    assert_eq!(first.status("mark", "Three")["reason"], "no_free_slot");
}

#[test]
fn a_machine_that_does_not_see_the_cache_says_so_and_claims_nothing() {
    let first = Queue::on(server::shared(), "");
    first.request("ok", "A Book");
    let second = Queue::beside(&first);
    let cache = first.path("cache").display().to_string();
    // As where it is not mounted: an empty directory, on a machine that is set up for the first time.
    let empty = second.path("empty");
    fs::create_dir(&empty).expect("a directory");
    second.reconfigure(&cache, &empty.display().to_string());
    for call in [&["init"][..], &["dispatch"], &["request", "--format", "ok", "Other"]] {
        let refused = second.run(call).code(78);
        assert!(refused.err.contains("is it mounted?"), "{call:?}: {}", refused.err);
    }
    assert!(fs::read_dir(&empty).expect("the directory").next().is_none(), "nothing is made in it");
    second.reconfigure(&empty.display().to_string(), &cache);
    second.run(["check"]).code(0);

    // And later: gone, of another queue, or not to be written to.
    let other = Queue::on(server::shared(), "");
    other.run(["init"]).code(0);
    let marker = first.path("cache/.export-queue");
    let own = fs::read(&marker).expect("the marker");
    let foreign = fs::read(other.path("cache/.export-queue")).expect("the marker of another queue");
    for (text, says) in [(None, "is it mounted?"), (Some(&foreign), "belongs to another queue")] {
        match text {
            None => fs::remove_file(&marker).expect("the marker goes"),
            Some(text) => fs::write(&marker, text).expect("another marker"),
        }
        let checked = second.run(["check"]).code(78);
        assert!(checked.out.contains("fail  cache.dir") && checked.out.contains(says), "{}", checked.out);
        second.run(["dispatch", "--wait"]).code(78);
        assert_eq!(first.sql("SELECT state, attempts FROM jobs"), ["0|0"], "nothing was claimed");
    }
    fs::write(&marker, own).expect("the marker is back");
    second.dispatch().code(0).silent();
    assert_eq!(first.state("ok", "A Book"), "ready");
}

#[test]
fn a_worker_looks_for_the_cache_before_each_claim() {
    let queue = Queue::on(server::shared(), "");
    queue.reconfigure("slots = 2", "slots = 1");
    set_seconds(&queue, "1");
    queue.request("mark", "First");
    queue.request("mark", "Second");
    let mut dispatcher = queue.spawn(["dispatch", "--wait"]);
    eventually("the first runs", || queue.scratch("LOG").first().cloned());
    let marker = queue.path("cache/.export-queue");
    let own = fs::read(&marker).expect("the marker");
    fs::remove_file(&marker).expect("the marker goes");
    eventually("the worker has ended", || dispatcher.is_over().then_some(()));
    assert_eq!(queue.sql("SELECT title, attempts, state FROM jobs"), ["Second|0|0"]);
    dispatcher.wait().code(78);
    let noted = fs::read_to_string(queue.path("state/logs/worker.txt")).expect("what workers say");
    assert!(noted.contains("is it mounted?"), "{noted}");
    fs::write(&marker, own).expect("the marker is back");
    queue.dispatch().code(0);
    assert_eq!(queue.state("mark", "Second"), "ready");
}

#[test]
fn who_waits_for_another_machines_lock_on_the_cache_is_left_alone() {
    let mut queue = Queue::on(server::shared(), "");
    queue.run(["dispatch"]).code(0);
    let path = queue.path("cache/.lock");
    let lock =
        fs::File::options().create(true).truncate(false).read(true).write(true).open(&path).expect("the lock file");
    fs2::FileExt::lock_exclusive(&lock).expect("nobody else has it");
    let record = "{\"boot\":\"another\",\"holder\":{\"pid\":1,\"start\":1},\"beat\":5,\"token\":null,\"job\":null,\"leader\":null}";
    fs::write(&path, record).expect("the record of a holder on another machine");
    // One of our own that has the file open, as whoever waits for the lock has.
    let mut waiting = queue.command(["dispatch", "--for", "60s"]);
    let mut waiting = waiting.stdin(fs::File::open(&path).expect("the lock file")).spawn().expect("it can be started");
    queue.run(["dispatch"]).code(0);
    let suspects = fs::read_to_string(queue.path("state/logs/suspects.json")).expect("what ticks remember");
    assert!(suspects.contains("another"), "{suspects}");
    queue.set("EXPORT_QUEUE_TEST_MONOTONIC", "100");
    queue.run(["dispatch"]).code(0);
    assert!(waiting.try_wait().expect("it is ours").is_none(), "it holds nothing and was ended");
    waiting.kill().expect("it is ours");
    waiting.wait().expect("it ends");
}

#[test]
fn a_sweep_never_deletes_what_another_machine_has_just_published() {
    let queue = Queue::on(server::shared(), "");
    for title in ["Old", "Gone"] {
        queue.request("ok", title);
    }
    queue.dispatch().code(0);
    let path = |title: &str| std::path::PathBuf::from(text(&queue.status("ok", title)["path"]));
    let (file, other) = (path("Old"), path("Gone"));
    Queue::age(&file, Duration::from_secs(700));
    let mut sweep = queue.command(["sweep"]);
    sweep
        .env("EXPORT_QUEUE_FAULT", "sweep.before_unlink=delay:1500")
        .env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
    let mut sweep = sweep.spawn().expect("it can be started");
    eventually("it has looked at the file", || queue.scratch("HITS").first().cloned());
    // As a machine whose locks do not reach this one publishes: by a rename, between the look and the deletion.
    let fresh = queue.path("cache/.work/fresh");
    fs::write(&fresh, "fresh").expect("a new file");
    fs::rename(&fresh, &file).expect("it is published");
    sweep.wait().expect("it ends");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "fresh");
    assert_eq!(fs::metadata(&file).expect("it is there").nlink(), 1);
    Queue::age(&other, Duration::from_secs(700));
    queue.run(["sweep"]).code(0);
    assert_eq!(queue.published(), [file]);
    queue.assert_quiet();
}

#[test]
fn what_a_sweep_had_moved_aside_when_it_died_is_swept_by_the_next() {
    for way in ["abort", "error", "full", "delay:50"] {
        let queue = Queue::on(server::shared(), "");
        queue.request("ok", "Old");
        queue.dispatch().code(0);
        let file = std::path::PathBuf::from(text(&queue.status("ok", "Old")["path"]));
        Queue::age(&file, Duration::from_secs(700));
        let mut sweep = queue.command(["sweep"]);
        sweep.env("EXPORT_QUEUE_FAULT", format!("sweep.aside={way}"));
        sweep.env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
        sweep.output().expect("it can be started");
        assert_eq!(queue.scratch("HITS").len(), 1, "{way}");
        // One that lives is not taken for dead.
        queue.run(["dispatch"]).code(0);
        for entry in fs::read_dir(queue.path("cache/.work")).expect("the work directories").flatten() {
            assert_eq!((way, queue.published()), ("abort", vec![]), "{}", entry.path().display());
            Queue::age(&entry.path(), Duration::from_secs(700));
        }
        queue.run(["dispatch"]).code(0);
        queue.run(["sweep"]).code(0);
        assert_eq!(queue.published(), Vec::<std::path::PathBuf>::new(), "{way}");
        assert_eq!(queue.state("ok", "Old"), "absent", "{way}");
        queue.assert_quiet();
    }
}

#[test]
fn behind_a_pooler_a_dispatcher_finds_what_is_asked_for_elsewhere() {
    let server = Server::own(&[]);
    let pooler = server.pooler(2);
    let first = Queue::on(server, "");
    let direct = format!("?host={}", server.dir().display());
    first.reconfigure(&direct, &format!("?host={}&port=6432", pooler.dir().display()));
    let second = Queue::beside(&first);
    first.run(["dispatch"]).code(0);
    let _dispatcher = first.spawn(["dispatch", "--for", "60s"]);
    let mut took = Vec::new();
    for n in 0..5 {
        let title = format!("Book {n}");
        let begun = now();
        second.request("ok", &title);
        eventually("it has started", || first.scratch("STARTS").contains(&title).then_some(()));
        took.push(begun.elapsed());
    }
    took.sort();
    println!("from request to exporter on another machine, by looking: {took:?}");
    assert!(took[2] < Duration::from_secs(5), "{took:?}");
}
