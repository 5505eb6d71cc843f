//! The queue moves from one database to another, and a schema from one version to the next: whole, once, whatever dies midway.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use export_queue::fault::MOMENTS;
use export_queue::store::moving::{Mark, Movable, Stage};
use export_queue::store::postgres::Postgres;
use export_queue::store::{Patience, Store};

use crate::harness::server::{self, Server};
use crate::harness::{Queue, eventually, text};
use crate::store::{ask, at};

const TABLES: &[&str] = &["queues", "jobs", "interests", "runs", "deliveries"];

/// Rows of every table that leave no column empty but those that only a run under way has.
const ROWS: &str = r#"
INSERT INTO jobs (id, title, lang, font, format, options, filename, base_filename, queue, client, meta, pages, priority, rank,
                  state, submitted_at, newer_than, due_at, waits_for, wait_until, last_run, node, attempts, retries,
                  interruptions, stops, base_waits)
VALUES (41, 'Ünï "quoted" \ back' || char(10) || '書 🦀', 'bn', 'mukta', 'ok', '{"images":"true"}', 'a.txt', 'b.txt', 'default',
        'web', '{"a": [1, null]}', 9007199254740993, 7, -9007199254740993, 0, 1700000000001, 1700000000002, 4102444800000,
        'not_before', 4102444800001, 'cccccccccccccccccccc', 'node', 1, 2, 3, 4, 5);
INSERT INTO jobs (id, title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at, slot, worker, node,
                  started_at, deadline_at, progress, finished_at, reason, detail, wanted_at, attempts)
VALUES (977, 'Broken', 'en', 'default', 'ok', '{}', 'c.txt', 'gone', 10, 5, 3, 1700000000003, 'default.0', '7.7', 'node',
        1700000000004, 1700000000005, '0.42 chapter 7', 1700000000006, 'exit_nonzero', 'exit 1: |' || char(1) || char(9) || '''',
        1700000000007, 3);
INSERT INTO interests (job_id, client) VALUES (41, ''), (41, 'web'), (977, 'other');
INSERT INTO runs (token, job_id, title, lang, font, format, options, filename, queue, client, meta, node, outcome, reason, detail,
                  submitted_at, started_at, finished_at, published_at, bytes, exit_code, signal, peak_memory, cpu_millis, present,
                  accessed_at, fingerprint, checked_at)
VALUES ('dddddddddddddddddddd', 40, 'Old', 'en', 'default', 'ok', '{}', 'd.txt', 'default', 'web', '1', 'node', 'ready', 'none', '',
        1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 10, 'f', 11);
INSERT INTO queues (name, paused_at, message) VALUES ('gone', 1700000000008, 'for good');
INSERT INTO deliveries (id, listener, job_id, title, lang, font, format, options, filename, client, meta, attempts, outcome, reason,
                        detail, happened_at, since, due_at, tries, error)
VALUES (12, 'ops', 977, 'Broken', 'en', 'default', 'ok', '{}', 'c.txt', 'web', '{}', 3, 'failed_unknown', 'exit_nonzero', 'exit 1',
        1700000000009, 1700000000010, 4102444800002, 2, 'exit 7');
UPDATE sqlite_sequence SET seq = 2000 WHERE name = 'jobs';
"#;

/// A queue on SQLite with something of everything, and the URL of a database that nothing uses.
fn full() -> (Queue, String) {
    let queue = Queue::new();
    for title in ["First", "Second"] {
        queue.request("ok", title);
    }
    queue.dispatch().code(0);
    queue.request("ok", "Waiting");
    for statement in ROWS.split(";\n").filter(|statement| !statement.trim().is_empty()) {
        queue.sql(statement);
    }
    let server = server::shared();
    let url = server.url(&server.fresh_database());
    (queue, url)
}

/// Everything in the database, by the columns of SQLite, but for the queue that is paused while it moves.
fn dump(queue: &Queue, columns: &[(&str, String)]) -> Vec<Vec<String>> {
    let rows = |(table, names): &(&str, String)| {
        let moving = if *table == "queues" { "WHERE name <> 'default'" } else { "" };
        let rows = queue.sql(&format!("SELECT {names} FROM {table} {moving} ORDER BY 1, 2"));
        // A text may have lines.
        rows.join("\n").lines().map(str::to_owned).collect()
    };
    columns.iter().map(rows).collect()
}

fn columns(queue: &Queue) -> Vec<(&'static str, String)> {
    let names = |table: &&'static str| queue.sql(&format!("SELECT name FROM pragma_table_info('{table}')"));
    TABLES.iter().map(|table| (*table, names(table).join(", "))).collect()
}

/// The queue goes on in the database of that URL.
fn turn_to(queue: &mut Queue, url: &str) {
    let text = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    queue.configure(&format!("database = \"{url}\"\n{text}"));
    queue.is_on(server::shared(), url);
}

fn turn_back(queue: &mut Queue) {
    let text = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    queue.configure(text.split_once('\n').expect("a first line").1);
    queue.is_on_sqlite();
}

#[test]
fn every_row_moves_and_comes_back_as_it_was() {
    let (mut queue, url) = full();
    let columns = columns(&queue);
    for (table, names) in &columns {
        for name in names.split(", ").filter(|name| !["token", "cancel_at"].contains(name)) {
            assert_ne!(queue.sql(&format!("SELECT count({name}) FROM {table}")), ["0"], "{table}.{name} is not tried");
        }
    }
    let before = dump(&queue, &columns);
    let said = queue.run(["--json", "migrate", "--to", &url]).code(0);
    let moved = said.json();
    assert_eq!(moved["moved"]["jobs"], 3);
    for ((table, _), rows) in columns.iter().zip(&before) {
        let lines = if *table == "queues" { 2 } else { queue.sql(&format!("SELECT 1 FROM {table}")).len() };
        assert!(moved["moved"][table] == lines && !rows.is_empty(), "{table}: {moved}");
    }
    assert!(said.err.contains("set `database` in"), "{}", said.err);

    // What has left is closed, to the old configuration and to whoever has it open.
    let refused = queue.run(["request", "--format", "ok", "Late"]).code(78);
    assert!(
        refused.err.contains("has moved to database") && refused.err.contains("change `database`"),
        "{}",
        refused.err
    );
    queue.run(["dispatch"]).code(78);
    assert_eq!(dump(&queue, &columns), before, "nothing of it has changed");

    turn_to(&mut queue, &url);
    assert_eq!(dump(&queue, &columns), before);
    let asked = queue.request("ok", "New");
    assert_eq!(asked["id"], 2001, "no number is given twice");
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("ok", "New"), queue.state("ok", "Waiting")), ("ready".into(), "ready".into()));
    assert_eq!(queue.state("ok", "First"), "ready", "the cache is the same");

    let before = dump(&queue, &columns);
    queue.run(["migrate", "--to", "sqlite"]).code(0);
    queue.run(["dispatch"]).code(78);
    turn_back(&mut queue);
    assert_eq!(dump(&queue, &columns), before);
    assert_eq!(queue.request("ok", "Newer")["id"], 2002);
    queue.dispatch().code(0).silent();
    queue.assert_quiet();
    // And there once more, over what was left behind.
    queue.run(["migrate", "--to", &url]).code(0);
    let before = dump(&queue, &columns);
    turn_to(&mut queue, &url);
    assert_eq!(dump(&queue, &columns), before);
    queue.run(["check"]).code(0);
}

#[test]
fn text_that_postgresql_cannot_hold_moves_with_a_mark_in_its_place() {
    let (mut queue, url) = full();
    queue.sql("UPDATE jobs SET detail = 'a' || char(0) || 'b' WHERE id = 977");
    queue.run(["migrate", "--to", &url]).code(0);
    turn_to(&mut queue, &url);
    assert_eq!(queue.sql("SELECT detail FROM jobs WHERE id = 977"), ["a\u{fffd}b"]);
}

#[test]
fn whatever_dies_at_whatever_moment_the_queue_is_in_one_place_and_whole() {
    let moments: Vec<&str> = MOMENTS.iter().copied().filter(|moment| moment.starts_with("migrate.")).collect();
    assert!(moments.len() >= 7, "{moments:?}");
    for moment in moments {
        for way in ["abort", "error"] {
            let fault = format!("{moment}={way}");
            let (mut queue, url) = full();
            let columns = columns(&queue);
            let before = dump(&queue, &columns);
            let mut broken = queue.command(["migrate", "--to", &url]);
            broken.env("EXPORT_QUEUE_FAULT", &fault).env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
            assert!(!broken.output().expect("it can be started").status.success(), "{fault}");
            assert_eq!(queue.scratch("HITS"), [moment], "{fault}");
            // Both places at once never take a request.
            let here = queue.run(["--exit-zero", "request", "--format", "ok", "Meanwhile"]).code;
            let config = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
            fs::write(queue.path("there.toml"), format!("database = \"{url}\"\n{config}")).expect("a configuration");
            let mut there = Command::new(crate::harness::PROGRAM);
            there.arg("--config").arg(queue.path("there.toml")).args([
                "--exit-zero",
                "request",
                "--format",
                "ok",
                "Meanwhile",
            ]);
            let there = crate::harness::call(&mut there).code;
            assert!(!(here == 0 && there == 0), "{fault}: both are open");
            let is_extra = |row: &String| !row.contains("Meanwhile");

            queue.run(["migrate", "--to", &url]).code(0);
            queue.run(["migrate", "--to", &url]).code(0);
            queue.run(["dispatch"]).code(78);
            turn_to(&mut queue, &url);
            let jobs =
                |dumped: &[Vec<String>]| dumped[1].iter().filter(|row| is_extra(row)).cloned().collect::<Vec<_>>();
            let after = dump(&queue, &columns);
            assert_eq!(jobs(&after), jobs(&before), "{fault}");
            assert_eq!((&after[0], &after[3], &after[4]), (&before[0], &before[3], &before[4]), "{fault}");
            queue.dispatch().code(0);
            assert_eq!(queue.state("ok", "Waiting"), "ready", "{fault}");
            if here == 0 || there == 0 {
                assert_eq!(queue.state("ok", "Meanwhile"), "ready", "{fault}: an accepted job was lost");
            }
        }
    }
}

#[test]
fn a_move_that_was_broken_off_may_be_taken_back() {
    for moment in ["migrate.before_close", "migrate.after_close", "migrate.between_rows", "migrate.after_arrival"] {
        let (queue, url) = full();
        let mut broken = queue.command(["migrate", "--to", &url]);
        broken.env("EXPORT_QUEUE_FAULT", format!("{moment}=abort"));
        assert!(!broken.output().expect("it can be started").status.success(), "{moment}");
        if moment == "migrate.before_close" {
            let status = queue.status("ok", "Waiting");
            assert!(text(&status["message"]).starts_with("moving to database"), "{status}");
            queue.run(["resume"]).code(0);
        } else {
            let refused = queue.run(["request", "--format", "ok", "Late"]).code(75);
            assert!(refused.err.contains("run `export-queue migrate` again"), "{}", refused.err);
            queue.run(["migrate", "--to", "sqlite"]).code(0);
        }
        queue.request("ok", "Late");
        queue.dispatch().code(0).silent();
        assert_eq!((queue.state("ok", "Late"), queue.state("ok", "Waiting")), ("ready".into(), "ready".into()));
        queue.run(["migrate", "--to", "sqlite"]).code(2);
        queue.run(["migrate", "--to", &url]).code(0);
    }
}

#[test]
fn a_queue_that_began_on_postgresql_moves_to_a_new_file() {
    let mut queue = Queue::on(server::shared(), "");
    queue.request("ok", "A");
    let mut broken = queue.command(["migrate", "--to", "sqlite"]);
    broken.env("EXPORT_QUEUE_FAULT", "migrate.after_close=abort");
    assert!(!broken.output().expect("it can be started").status.success());
    for (code, words) in [(75, "run `export-queue migrate` again"), (78, "has moved to")] {
        for verb in [&["request", "--format", "ok", "B"][..], &["status", "--format", "ok", "A"], &["dispatch"]] {
            let refused = queue.run(verb).code(code);
            assert!(refused.err.contains(words), "{verb:?}: {refused:?}");
        }
        queue.run(["migrate", "--to", "sqlite"]).code(0);
    }
    turn_back(&mut queue);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn of_two_moves_at_once_one_closes_the_queue() {
    let server = server::shared();
    let url = server.url(&server.fresh_database());
    drop(Postgres::open_or_create(&url, "id", Patience::OWNER).expect("a queue"));
    let mut store = Postgres::open_to_move(&url).expect("the queue");
    let mark = |other: &str| Mark { stage: Stage::Leaving, id: other.into(), other: other.into() };
    assert_eq!(store.close(&mark("here")).expect("nothing runs"), 0);
    assert_eq!(store.close(&mark("here")).expect("an answer that was lost is given again"), 0);
    let refused = store.close(&mark("there")).expect_err("it leaves already");
    assert!(refused.to_string().contains("the queue is moving to here"), "{refused}");
    assert_eq!(store.mark().expect("a look"), Some(mark("here")));
    assert!(store.open_again(&mark("here"), &mark("here").at(Stage::Here)).expect("it is taken back"));
    assert_eq!(store.close(&mark("there")).expect("it may leave again"), 0);
}

#[test]
fn a_queue_is_not_closed_over_a_claim_that_is_not_committed_yet() {
    let server = server::shared();
    let database = server.fresh_database();
    let url = server.url(&database);
    let mut owner = Postgres::open_or_create(&url, "id", Patience::OWNER).expect("a queue");
    owner.request(&ask("A"), at(0)).expect("a job");
    let mut psql = server.program("psql");
    psql.args(["-X", "-q", "-U", "queue", "-d", &database, "-h"]).arg(server.dir());
    let mut claiming = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql can be started");
    let claim = "UPDATE jobs SET state = 1, token = 't', last_run = 't', node = 'n', slot = 's', worker = '7.8', attempts = 1, \
                 lease_until = 1, started_at = 1, deadline_at = 2";
    let mut input = claiming.stdin.take().expect("its input");
    writeln!(input, "SET search_path = export_queue; BEGIN; {claim};").expect("it reads");
    let locks = |which| {
        let here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let held =
            server.sql(&database, &format!("SELECT 1 FROM pg_locks WHERE {here} AND relation IS NOT NULL AND {which}"));
        (!held.is_empty()).then_some(())
    };
    eventually("it is claimed", || locks("mode = 'RowExclusiveLock' AND granted"));
    let mut store = Postgres::open_to_move(&url).expect("the queue");
    let mark = Mark { stage: Stage::Leaving, id: "m".into(), other: "there".into() };
    let closing = std::thread::spawn(move || store.close(&mark));
    eventually("the move waits for it", || locks("NOT granted"));
    writeln!(input, "COMMIT;").expect("it reads");
    drop(input);
    assert_eq!(closing.join().expect("an answer").expect("a number"), 1);
    assert!(claiming.wait().expect("it ends").success());
}

#[test]
fn a_database_with_jobs_of_its_own_takes_no_other_queue() {
    let (queue, _) = full();
    let other = Queue::on(server::shared(), "");
    other.request("ok", "Theirs");
    let text = fs::read_to_string(other.path("config.toml")).expect("a configuration");
    let url = text.lines().next().and_then(|line| line.split('"').nth(1)).expect("a URL").to_owned();
    // Before anything of the queue is paused.
    let mut refused = queue.command(["migrate", "--to", &url]);
    let refused = crate::harness::call(refused.env("EXPORT_QUEUE_FAULT", "migrate.before_close=abort")).code(78);
    assert!(refused.err.contains("jobs or history of its own"), "{}", refused.err);
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Waiting"), "ready", "the queue goes on where it was");
    other.dispatch().code(0);
    assert_eq!(other.state("ok", "Theirs"), "ready");
    for wrong in ["/var/lib/other.db", "mysql://x/y"] {
        queue.run(["migrate", "--to", wrong]).code(2);
    }
    queue.run(["migrate", "--to", "postgres://queue@/none?host=/nowhere"]).code(75);
    queue.request("ok", "Still here");
}

#[test]
fn running_exports_are_waited_for_and_nothing_new_starts() {
    let (mut queue, url) = full();
    fs::write(queue.path("S"), "600").expect("a note for the fake exporter");
    queue.request("mark", "Long");
    queue.run(["dispatch"]).code(0);
    eventually("its exporter runs", || queue.scratch("LOG").first().cloned());
    let refused = queue.run(["migrate", "--to", &url, "--wait", "500ms"]).code(75);
    assert!(refused.err.contains("exports have not ended: nothing has moved"), "{}", refused.err);
    assert_eq!(queue.sql("SELECT name FROM queues WHERE paused_at IS NOT NULL"), ["gone"], "the queues go on");

    let moving = queue.spawn(["migrate", "--to", &url]);
    eventually("nothing new starts", || queue.sql("SELECT name FROM queues WHERE name = 'default'").first().cloned());
    assert_eq!(queue.request("ok", "Late")["reason"], "paused", "it is accepted all the same");
    queue.run(["dispatch"]).code(0);
    for exporter in queue.exporters() {
        exporter.kill("KILL");
    }
    moving.wait().code(0);
    turn_to(&mut queue, &url);
    assert_eq!(queue.status("mark", "Long")["reason"], "killed_by_signal");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Late"), "ready");
}

#[test]
fn a_live_queue_moves_and_loses_nothing_that_was_accepted() {
    const CALLERS: usize = 4;
    let (mut queue, url) = full();
    let dispatcher = queue.spawn(["dispatch", "--for", "60s"]);
    eventually("it works", || (queue.state("ok", "Waiting") == "ready").then_some(()));
    let config = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    let accepted: Vec<String> = std::thread::scope(|scope| {
        let ask = |caller: usize| {
            let queue = &queue;
            move || {
                let titles = (0..).map(|n| format!("Book {caller} {n}"));
                let mut accepted = Vec::new();
                for title in titles {
                    match queue.run(["request", "--format", "ok", &title]).code {
                        0 | 3 | 4 => accepted.push(title),
                        75 => {}
                        78 => return accepted,
                        code => panic!("{title}: {code}"),
                    }
                }
                accepted
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(ask(caller))).collect();
        eventually("some are made", || (queue.published().len() > 10).then_some(()));
        queue.run(["migrate", "--to", &url]).code(0);
        callers.into_iter().flat_map(|caller| caller.join().expect("a caller")).collect()
    });
    assert!(accepted.len() > 10, "{}", accepted.len());
    queue.configure(&format!("database = \"{url}\"\n{config}"));
    dispatcher.wait().code(78);
    queue.is_on(server::shared(), &url);
    eventually("all are made", || {
        queue.dispatch();
        (queue.sql("SELECT count(*) FROM jobs WHERE title LIKE 'Book %'") == ["0"]).then_some(())
    });
    for title in &accepted {
        assert_eq!(queue.state("ok", title), "ready", "{title}");
    }
    let starts = queue.scratch("STARTS");
    assert_eq!(starts.len(), starts.iter().collect::<BTreeSet<_>>().len(), "each was made once");
    println!("{} accepted while the queue moved", accepted.len());
}

/// Feeds SQL to psql as an administrator does.
fn psql(server: &Server, database: &str, sql: &str) {
    let mut psql = server.program("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "queue", "-d", database, "-h"]).arg(server.dir());
    let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql can be started");
    child.stdin.take().expect("its input").write_all(sql.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success(), "{sql}");
}

#[test]
fn an_administrator_sets_the_schema_up_by_hand() {
    let server = server::shared();
    let queue = Queue::on(server, "");
    let none = queue.run(["--json", "migrate", "status"]).code(0).json();
    assert_eq!((none["engine"].as_str(), none["found"].is_null()), (Some("postgres"), true));
    let text = queue.run(["migrate", "sql"]).code(0).out;
    let database = queue.sql("SELECT current_database()").remove(0);
    psql(server, &database, &text);
    let status = queue.run(["--json", "migrate", "status"]).code(0).json();
    assert_eq!(status["found"], status["program"]);
    // A user who may only use what is there.
    psql(
        server,
        &database,
        "CREATE ROLE only_uses LOGIN; GRANT USAGE ON SCHEMA export_queue TO only_uses; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA export_queue TO only_uses;",
    );
    queue.reconfigure("postgres://queue@", "postgres://only_uses@");
    queue.request("ok", "A Book");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A Book"), "ready");
    queue.run(["check"]).code(0);

    let sqlite = Queue::new();
    sqlite.run(["init"]).code(0);
    let status = sqlite.run(["--json", "migrate", "status"]).code(0).json();
    assert_eq!((status["engine"].as_str(), &status["found"]), (Some("sqlite"), &status["program"]));
    assert!(sqlite.run(["migrate", "status"]).code(0).out.starts_with("sqlite  "));
}

#[test]
fn a_program_of_the_schema_before_works_on_while_others_are_newer() {
    let server = server::shared();
    let queue = Queue::on(server, "");
    let database = queue.sql("SELECT current_database()").remove(0);
    let first = include_str!("../sql/postgres/migrations/0001_first.sql");
    psql(
        server,
        &database,
        &format!(
            "CREATE SCHEMA export_queue; SET search_path = export_queue; {first} \
             INSERT INTO meta (name, value) VALUES ('schema', '1'), ('oldest_writer', '1'), ('queue_id', 'the first id'); \
             INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at) \
             VALUES ('Before', 'en', 'default', 'ok', '{{}}', 'before.txt', 'default', 10, 1700001200000, 0, 1700000000000);"
        ),
    );
    assert_eq!(queue.run(["--json", "migrate", "status"]).code(0).json()["found"], 1);
    // The first use by this program brings the schema up to date.
    queue.run(["pause"]).code(0);
    queue.request("ok", "New");
    let status = queue.run(["--json", "migrate", "status"]).code(0).json();
    assert!(status["found"] == status["program"] && status["found"] != 1, "{status}");
    assert_eq!(queue.sql("SELECT title FROM jobs ORDER BY rank"), ["Before", "New"], "no row was lost");
    // What the older program looks at before it works: nothing says that it is too old.
    let too_new = "SELECT value FROM meta WHERE name = 'oldest_writer' AND value::int > 1";
    assert!(queue.sql(too_new).is_empty());
    queue.run(["resume"]).code(0);
    psql(server, &database, include_str!("fixtures/postgres_1.sql"));
    assert_eq!(queue.sql("SELECT outcome, node FROM runs"), ["ready|old node"]);
    assert_eq!(queue.sql("SELECT title, outcome FROM deliveries"), ["Old|ready"]);
    assert_eq!(queue.sql("SELECT title FROM jobs ORDER BY rank"), ["Before", "New"]);
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "New"), "ready");
    assert!(queue.sql("SELECT title FROM jobs WHERE state < 2").is_empty());
}
