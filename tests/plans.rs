//! What each hot statement costs in a deep queue on PostgreSQL: by an index, whatever the planner thinks that day.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use export_queue::clock::from_millis;
use export_queue::job::Outcome;
use export_queue::store::postgres::Postgres;
use export_queue::store::{Ask, Claim, Patience, QueueBounds, Store};

use crate::harness::now;
use crate::harness::server::Server;

/// How many jobs wait: a million in a long run (`EXPORT_QUEUE_TEST_ROWS`).
fn rows() -> u32 {
    std::env::var("EXPORT_QUEUE_TEST_ROWS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

fn claim(token: &str) -> Claim {
    Claim {
        queue: "default".into(),
        formats: vec![("epub".into(), Duration::from_secs(60)), ("pdf".into(), Duration::from_secs(60))],
        token: token.into(),
        node: "node".into(),
        slot: "default.0".into(),
        worker: "7.8".into(),
        max_running: 0,
        lease: Duration::from_secs(90),
    }
}

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
    println!("{} rows: a claim takes {:?} (p50), {:?} (p95)", rows(), claims[50], claims[95]);
}
