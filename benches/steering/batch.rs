//! What a large batch costs beside plain INSERTs of the same rows in one transaction on the same schema, and for how long it
//! keeps others from writing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, TransactionBehavior, params_from_iter};

use crate::harness::{Queue, now};
use crate::{percentile, write_lines};

const LINES: usize = 100_000;

/// Odd, so that there is one in the middle.
const ROUNDS: usize = 3;

/// What a new job consists of.
const TABLES: [&str; 2] = ["jobs", "interests"];

pub(crate) fn measure() {
    let rounds: Vec<[f64; 3]> = (0..ROUNDS).map(|_| round()).collect();
    let median = |figure: usize| {
        let mut sorted: Vec<f64> = rounds.iter().map(|round| round[figure]).collect();
        sorted.sort_by(f64::total_cmp);
        percentile(&sorted, 50)
    };
    let [whole, locked, plain] = [median(0), median(1), median(2)];
    println!("| {LINES} lines, the middle of {ROUNDS} | seconds | rows a second | of plain |\n|---|---|---|---|");
    for (name, took) in [("plain prepared INSERTs", plain), ("lock held", locked), ("`request --batch`", whole)] {
        println!("| {name} | {took:.2} | {:.0} | {:.2} |", LINES as f64 / took, plain / took);
    }
}

/// Seconds: the command, for how long nobody else could write meanwhile, plain INSERTs.
fn round() -> [f64; 3] {
    let queue = empty_queue();
    write_lines(&queue, LINES, ",\"client\":\"editor\"");
    let is_over = AtomicBool::new(false);
    let (whole, locked) = thread::scope(|scope| {
        let prober = scope.spawn(|| longest_refusal(&queue, &is_over));
        let start = now();
        queue.run(["request", "--batch", queue.path("lines").to_str().expect("a path")]).code(0);
        let whole = start.elapsed();
        is_over.store(true, Ordering::Relaxed);
        (whole, prober.join().expect("a time"))
    });
    [whole, locked, insert_plainly(&connect(&queue))].map(|time| time.as_secs_f64())
}

/// A queue whose database is there.
fn empty_queue() -> Queue {
    let queue = Queue::new();
    queue.dispatch().code(0).silent();
    queue
}

fn connect(queue: &Queue) -> Connection {
    let conn = Connection::open(queue.path("state/queue.db")).expect("the database opens");
    conn.pragma_update(None, "synchronous", "FULL").expect("a setting");
    conn
}

/// For how long without a break nobody else could begin to write.
fn longest_refusal(queue: &Queue, is_over: &AtomicBool) -> Duration {
    let conn = connect(queue);
    conn.busy_timeout(Duration::ZERO).expect("a timeout");
    let (mut since, mut longest) = (None::<Instant>, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        if conn.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            longest = longest.max(since.take().map_or(Duration::ZERO, |since| since.elapsed()));
        } else {
            since.get_or_insert_with(now);
        }
        thread::sleep(Duration::from_millis(1));
    }
    longest.max(since.map_or(Duration::ZERO, |since| since.elapsed()))
}

/// Writes the rows that are there into a new queue.
fn insert_plainly(from: &Connection) -> Duration {
    let rows = TABLES.map(|table| rows_of(from, table));
    assert!(rows.iter().all(|rows| rows.len() == LINES), "each line is a job");
    let queue = empty_queue();
    let mut to = connect(&queue);
    let start = now();
    let tx = to.transaction_with_behavior(TransactionBehavior::Immediate).expect("a transaction");
    let mut inserts = TABLES.map(|table| {
        let width = tx.prepare(&format!("SELECT * FROM {table}")).expect("a statement").column_count();
        let places = vec!["?"; width].join(",");
        tx.prepare(&format!("INSERT INTO {table} VALUES ({places})")).expect("a statement")
    });
    let [jobs, interests] = &rows;
    for (job, interest) in jobs.iter().zip(interests) {
        inserts[0].execute(params_from_iter(job)).expect("a job");
        inserts[1].execute(params_from_iter(interest)).expect("an interest");
    }
    drop(inserts);
    tx.commit().expect("a commit");
    start.elapsed()
}

fn rows_of(conn: &Connection, table: &str) -> Vec<Vec<Value>> {
    let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).expect("a statement");
    let width = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| (0..width).map(|column| row.get(column)).collect::<Result<Vec<Value>, _>>();
    statement.query_map([], row).expect("rows").collect::<Result<_, _>>().expect("values")
}
