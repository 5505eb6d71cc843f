//! What needs no process of its own: enqueuing beside plain SQL, and claims at depth, through the store itself.

use std::time::Duration;

use export_queue::clock;
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{Again, Claim, Store};
use rusqlite::named_params;

use crate::Row;
use crate::place::Place;
use crate::timer::{Contender, Times, interleave, span, time};

const INSERT: &str = include_str!("../../sql/sqlite/insert.sql");

/// `request --batch` of 100,000 beside prepared INSERTs of the same rows in one transaction, each into an empty queue.
pub(crate) fn batch(rounds: usize) -> Vec<Row> {
    const ROWS: usize = 100_000;
    let contenders: Vec<Contender<'_>> =
        vec![Box::new(|| plain(&Place::new(), ROWS)), Box::new(|| Place::new().fill("row", ROWS))];
    let times = interleave(rounds, contenders);
    let rate = |times: &Times| ROWS as f64 / times.median().as_secs_f64();
    vec![Row {
        what: "`request --batch` of 100,000".into(),
        against: "time ÷ plain prepared INSERTs in one transaction",
        figure: times[1].over(&times[0]),
        bar: Some(1.43),
        raw: format!("{:.0} to {:.0} rows/s", rate(&times[1]), rate(&times[0])),
    }]
}

fn plain(place: &Place, rows: usize) -> Duration {
    let mut conn = place.database();
    time(|| insert(&mut conn, rows)).0
}

/// Inserts queued jobs as the program does, with nothing around it.
pub(crate) fn insert(conn: &mut rusqlite::Connection, rows: usize) {
    let tx = conn.transaction().expect("a transaction");
    for number in 0..rows {
        let title = format!("row {number}");
        let hash = blake3::hash(title.as_bytes()).to_hex();
        let filename = format!("row_{number}-en-default-{}.bin", &hash[..32]);
        let none: Option<i64> = None;
        let params = named_params! {
            ":title": title, ":lang": "en", ":font": "default", ":format": "bin", ":options": "{}", ":filename": filename,
            ":base_filename": none, ":queue": "default", ":client": none, ":meta": none, ":pages": none, ":priority": 10,
            ":rank": number as i64, ":submitted_at": number as i64, ":newer_than": none, ":due_at": none,
            ":waits_for": none, ":wait_until": none,
        };
        let mut statement = tx.prepare_cached(INSERT).expect("the statement");
        statement.execute(params).expect("a row");
    }
    tx.commit().expect("a commit");
}

/// One claim with so many jobs queued. In memory: what is measured is the search, not the disk.
pub(crate) fn claim(rounds: usize) -> Vec<Row> {
    const DEPTHS: [(usize, &str); 3] = [(1_000, "1,000"), (100_000, "100,000"), (1_000_000, "1,000,000")];
    let mut queues: Vec<(Place, Sqlite)> = DEPTHS
        .iter()
        .map(|(depth, _)| {
            let place = Place::in_memory();
            insert(&mut place.database(), *depth);
            let store = Sqlite::open(&place.path("state/queue.db"), "").expect("the queue");
            (place, store)
        })
        .collect();
    let contenders: Vec<Contender<'_>> =
        queues.iter_mut().map(|(_, store)| -> Contender<'_> { Box::new(|| claim_once(store)) }).collect();
    let times = interleave(rounds.max(500), contenders);
    let figures = times.iter().zip(DEPTHS).skip(1);
    figures
        .map(|(took, (_, depth))| Row {
            what: format!("a claim among {depth} jobs"),
            against: "÷ among 1,000",
            figure: took.over(&times[0]),
            bar: Some(1.2),
            raw: format!("{} to {}", span(took.median()), span(times[0].median())),
        })
        .collect()
}

/// So many claims of a queue, one after another.
pub(crate) fn claims(place: &Place, count: usize) -> Times {
    let mut store = Sqlite::open(&place.path("state/queue.db"), "").expect("the queue");
    Times((0..count).map(|_| claim_once(&mut store)).collect())
}

/// Claims the next job and puts it back to its place; how long the claim took.
fn claim_once(store: &mut Sqlite) -> Duration {
    let claim = Claim {
        queue: "default".into(),
        formats: vec![("bin".into(), Duration::from_secs(300))],
        token: "00000000000000000000".into(),
        node: "node".into(),
        slot: "default.0".into(),
        worker: "1.1".into(),
        max_running: 0,
        lease: Duration::from_secs(90),
    };
    let (took, job) = time(|| store.claim(&claim, clock::now()).expect("a claim"));
    assert!(job.is_some(), "a job is due");
    assert!(store.requeue(&claim.token, Again::Base, None).expect("a way back"));
    took
}
