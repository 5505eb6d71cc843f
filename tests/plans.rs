//! What each hot statement costs in a deep queue on PostgreSQL: by an index, whatever the planner thinks that day.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use export_queue::clock::from_millis;
use export_queue::job::Outcome;
use export_queue::store::postgres::Postgres;
use export_queue::store::{Ask, Claim, Patience, QueueBounds, Store};

use crate::harness::server::Server;
use crate::harness::{eventually, now};

/// How many jobs wait: a million in a long run (`EXPORT_QUEUE_TEST_ROWS`).
fn rows() -> u32 {
    std::env::var("EXPORT_QUEUE_TEST_ROWS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

fn claim(token: &str) -> Claim {
    Claim {
        queue: "default".into(),
        // Nobody waits for the last: that is found out without a walk through the queue.
        formats: ["epub", "pdf", "mobi"].map(|format| (format.to_owned(), Duration::from_secs(60))).into(),
        token: token.into(),
        node: "node".into(),
        slot: "default.0".into(),
        worker: "7.8".into(),
        max_running: 0,
        lease: Duration::from_secs(90),
    }
}

/// How many rows a statement may look at in vain.
const FEW: u64 = 1_000;

/// A million queued jobs, a tenth of them made from others, and as many runs as a month leaves.
fn fill(server: &Server, database: &str) {
    server.sql(
        database,
        &format!(
            "INSERT INTO jobs (title, lang, font, format, options, filename, base_filename, queue, client, priority, rank, \
             state, submitted_at) SELECT 'Book ' || n, 'en', 'default', CASE n % 10 WHEN 0 THEN 'pdf' ELSE 'epub' END, '{{}}', \
             md5(n::text) || '.x', CASE n % 10 WHEN 0 THEN md5('base' || n) || '.x' END, 'default', 'client ' || n % 1000, \
             10, n, 0, n FROM generate_series(1, {}) AS n",
            rows()
        ),
    );
    server.sql(
        database,
        "INSERT INTO runs (token, job_id, title, lang, font, format, options, filename, queue, node, outcome, submitted_at, \
         started_at, finished_at, published_at, present) SELECT md5(n::text), n, 'Old ' || n, 'en', 'default', 'epub', '{}', \
         md5('old' || n) || '.x', 'default', 'node', 'ready', n, n, n, n, 1 FROM generate_series(1, 50000) AS n",
    );
    server.sql(database, "ANALYZE");
}

fn ask(ask_title: &str) -> Ask {
    let key = export_queue::key::Key {
        title: ask_title.into(),
        lang: "en".into(),
        font: "default".into(),
        format: "epub".into(),
        options: std::collections::BTreeMap::new(),
    };
    Ask {
        key,
        filename: format!("{ask_title}.epub"),
        base_filename: None,
        queue: "default".into(),
        client: Some("client 7".into()),
        meta: None,
        pages: None,
        priority: 10,
        rank: None,
        not_before: None,
        wait_until: None,
        refresh: false,
        retry: false,
        hold: Duration::from_secs(60),
        bounds: QueueBounds { queued: 100, per_client: 0 },
    }
}

/// Everything that happens for each poll, each request, each export and each idle look.
fn go_through(store: &mut dyn Store) -> Vec<Duration> {
    let at = from_millis(2_000_000);
    let full = store.request(&ask("New"), at).expect("a request");
    assert!(matches!(full, export_queue::store::Requested::QueueFull));
    let asked = Ask { bounds: QueueBounds::default(), ..ask("New") };
    store.request(&asked, at).expect("a request");
    store.request(&asked, at).expect("a request that joins");
    let job = store.find("New.epub").expect("a look").expect("a row");
    store.find_by_id(job.id).expect("a look");
    store.ahead(&job).expect("a count");
    store.formats_ahead(&job).expect("formats");
    store.recent_durations("epub", 50).expect("durations");
    store.pause_of("default").expect("a look");
    store.due("default", &claim("t").formats, at, 4).expect("a count");
    store.due_formats("default").expect("formats");
    store.count_started("default").expect("a count");
    let mut claims = Vec::new();
    for n in 0..100 {
        let token = format!("token {n}");
        let begun = now();
        let job = store.claim(&claim(&token), at).expect("a claim").expect("something is due");
        claims.push(begun.elapsed());
        store.renew(&token, Duration::from_secs(90)).expect("a renewal");
        store.find_by_token(&token).expect("a look");
        store.progress(&token, "half").expect("a note");
        let run = export_queue::job::Run { published_at: Some(at), ..job.run(Outcome::Ready, at) };
        store.finish(&run, "node").expect("an end");
    }
    store.lost("node", 0, 256).expect("a look");
    store.started_on("node").expect("a look");
    store.fulfilled(at).expect("a look");
    store.expire_waits(at).expect("an expiry");
    store.due_files(from_millis(1000), at, (0, 512)).expect("files");
    store.swept(&["a.x".to_owned(), "b.x".to_owned()]).expect("a note");
    store.cancel("New.epub", Some("client 7"), false, at).expect("a cancel");
    claims.sort();
    claims
}

#[test]
fn hot_statements_go_by_an_index_in_a_deep_queue() {
    let server = Server::own(&[
        "-c",
        "shared_preload_libraries=auto_explain",
        "-c",
        "auto_explain.log_min_duration=0",
        "-c",
        "auto_explain.log_analyze=on",
        "-c",
        "synchronous_commit=off",
    ]);
    let database = server.fresh_database();
    let patience = Patience { each: Duration::from_secs(60), ..Patience::OWNER };
    let mut store = Postgres::open_or_create(&server.url(&database), "the id", patience).expect("a queue");
    fill(server, &database);
    let log = server.dir().join("log");
    let before = fs::read_to_string(&log).expect("a log").len();
    let claims = go_through(&mut store);
    let text = fs::read_to_string(&log).expect("a log");
    let plans = &text[before..];
    assert!(plans.matches("Query Text:").count() > 400, "the plans were not logged");
    let tables = ["jobs", "runs"];
    let scans: BTreeSet<&str> = plans
        .split("Query Text:")
        .filter(|plan| tables.iter().any(|table| plan.contains(&format!("Seq Scan on {table} "))))
        .collect();
    assert!(scans.is_empty(), "{}", scans.into_iter().collect::<Vec<_>>().join("\n"));
    let removed = regex::Regex::new(r"Rows Removed by [A-Za-z ]*Filter: (\d+)").expect("a pattern");
    let walks = plans.split("Query Text:").filter(|plan| {
        let counts = removed.captures_iter(plan).filter_map(|found| found[1].parse::<u64>().ok());
        counts.max().is_some_and(|most| most > FEW)
    });
    let walks: BTreeSet<&str> = walks.collect();
    assert!(walks.is_empty(), "{}", walks.into_iter().collect::<Vec<_>>().join("\n"));
    println!("{} rows: a claim takes {:?} (p50), {:?} (p95)", rows(), claims[50], claims[95]);
}

/// How many jobs come and go beside an old transaction: a hundred thousand in a long run.
fn cycles() -> u32 {
    if rows() < 1_000_000 { 4_000 } else { 100_000 }
}

/// Lets jobs wait whose numbers are from `first` on.
fn queue_up(server: &Server, database: &str, first: u32, count: u32) {
    let sql = format!(
        "INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at) \
         SELECT 'Book ' || n, 'en', 'default', 'epub', '{{}}', md5(n::text) || '.x', 'default', 10, n, 0, n \
         FROM generate_series({first}, {}) AS n",
        first + count - 1
    );
    server.sql(database, &sql);
}

/// Claims jobs and ends them; how long each claim took, sorted.
fn come_and_go(url: &str, prefix: &str, count: u32) -> Vec<Duration> {
    let mut store = Postgres::open(url, Patience::OWNER).expect("a queue");
    let at = from_millis(2_000_000);
    let mut took = Vec::new();
    for n in 0..count {
        let token = format!("{prefix} {n}");
        // Where others were quicker with sixteen heads there is nothing for now.
        let job = eventually("something is due", || {
            let begun = now();
            let job = store.claim(&claim(&token), at).expect("a claim");
            took.push(begun.elapsed());
            job
        });
        let run = export_queue::job::Run { published_at: Some(at), ..job.run(Outcome::Ready, at) };
        store.finish(&run, "node").expect("an end");
    }
    took.sort();
    took
}

#[test]
fn a_claim_stays_cheap_beside_an_old_open_transaction() {
    // Nothing is known of the tables meanwhile, as after a first batch.
    let server = Server::own(&["-c", "synchronous_commit=off", "-c", "autovacuum=off"]);
    let database = server.fresh_database();
    let url = server.url(&database);
    Postgres::open_or_create(&url, "the id", Patience::OWNER).expect("a queue");
    queue_up(server, &database, 1, 400 + cycles());
    let before = come_and_go(&url, "before", 100);
    let mut psql = server.program("psql");
    psql.args(["-X", "-q", "-U", "queue", "-d", &database, "-h"]).arg(server.dir());
    let mut old = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql can be started");
    let mut input = old.stdin.take().expect("its input");
    writeln!(input, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM export_queue.jobs;").expect("a pipe");
    let open = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()";
    eventually("the old transaction is open", || (server.sql(&database, open) == ["1"]).then_some(()));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let url = &url;
            scope.spawn(move || come_and_go(url, &format!("node {number}"), cycles() / 4));
        }
    });
    server.sql(&database, "VACUUM jobs");
    let after = come_and_go(&url, "after", 100);
    println!(
        "a claim before {:?}, after {} jobs came and went beside an old transaction {:?} (p50), {:?} (p95)",
        before[50],
        cycles(),
        after[50],
        after[95]
    );
    // On a machine that is busy with other things everything takes long.
    let bound = Duration::from_millis(50).max(before[50] * 10);
    assert!(after[50] < bound, "a claim takes {:?}, and {:?} before", after[50], before[50]);
    assert_eq!(server.sql(&database, open), ["1"], "the old transaction is still open");
    drop(input);
    old.wait().expect("psql ends");
}
