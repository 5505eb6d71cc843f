//! What calls cost, in counts: system calls, syncs, transactions, instructions, statements, page faults. Times depend on the machine and on what else it does; these
//! do not. `docs/costs.md` says what each is for.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::harness::{Queue, Running, eventually};

/// The system calls of one process, as strace writes them.
struct Calls(Vec<String>);

impl Calls {
    fn like(&self, what: impl Fn(&str) -> bool) -> usize {
        self.0.iter().filter(|call| what(call)).count()
    }

    fn syncs(&self, file: &str) -> usize {
        self.like(|call| (call.starts_with("fsync(") || call.starts_with("fdatasync(")) && call.contains(file))
    }

    /// How often the write lock of the database was taken (SQLite's file format, "WAL locks": byte 120).
    fn transactions(&self) -> usize {
        self.like(|call| {
            call.starts_with("fcntl(") && call.contains("F_WRLCK") && call.contains("l_start=120, l_len=1")
        })
    }

    /// How often the log of the database began anew; its header is synced by itself (`sqlite3WalFrames`).
    fn new_logs(&self) -> usize {
        self.like(|call| call.starts_with("pwrite64(") && call.contains("queue.db-wal>") && call.contains(", 32, 0) "))
    }

    /// Fails where there are more than `most`, naming the commonest.
    #[track_caller]
    fn at_most(&self, most: usize) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &self.0 {
            *counts.entry(call.split('(').next().unwrap_or_default()).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().map(|(name, count)| (count, name)).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        println!("{} calls: {counts:?}", self.0.len());
        assert!(self.0.len() <= most, "{} calls, {most} were enough: {counts:?}\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Whether a call only asks for memory: how often that is depends on where the kernel has put the heap.
fn is_of_the_allocator(call: &str) -> bool {
    call.starts_with("brk(") || call.starts_with("munmap(") || call.contains("MAP_ANONYMOUS")
}

/// The calls of each process of a command, by process id, in the order in which they began; what the loader of a dynamic
/// program does before it reads its configuration is not counted.
fn traced(queue: &Queue, args: &[&str], code: i32) -> Vec<Calls> {
    let trace = queue.path("trace");
    let program = queue.command(args);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-o"]).arg(&trace).arg(program.get_program()).args(program.get_args());
    let done = strace.output().expect("strace runs");
    assert_eq!(done.status.code(), Some(code), "{done:?}");
    let mut processes: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for line in fs::read_to_string(trace).expect("the trace").lines() {
        let (pid, call) = line.split_once(' ').expect("a process and its call");
        let call = call.trim_start();
        if call.starts_with(|first: char| first.is_ascii_lowercase()) && !is_of_the_allocator(call) {
            processes.entry(pid.parse().expect("a number")).or_default().push(call.to_owned());
        }
    }
    let own = |calls: Vec<String>| {
        let first = calls
            .iter()
            .position(|call| call.starts_with("openat(") && call.contains("config.toml\""))
            .unwrap_or_default();
        Calls(calls.into_iter().skip(first).collect())
    };
    processes.into_values().map(own).collect()
}

/// A dispatcher that has done a tick, and so has the database open: it spares the others the recovery of the log.
fn dispatcher(queue: &Queue) -> Running {
    let last_tick = || fs::metadata(queue.path("state/tick")).and_then(|meta| meta.modified()).ok();
    let before = last_tick();
    let running = queue.spawn(["dispatch", "--for", "60s"]);
    eventually("the dispatcher has done a tick", || (last_tick() > before).then_some(()));
    running
}

/// One process that ends by itself.
fn calls(queue: &Queue, args: &[&str], code: i32) -> Calls {
    traced(queue, args, code).swap_remove(0)
}

/// What one process did, as valgrind counts it: in the program that is tested, which is a debug build; what is SQLite's, and that
/// is most of it, is optimised there too. The loader is not counted.
struct Work {
    instructions: u64,
    statements: u64,
}

fn work(queue: &Queue, args: &[&str], code: i32) -> Work {
    let profile = queue.path("profile");
    let program = queue.command(args);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--toggle-collect=main"]);
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    let done = valgrind.arg(program.get_program()).args(program.get_args()).output().expect("valgrind runs");
    assert_eq!(done.status.code(), Some(code), "{done:?}");
    let profile = fs::read_to_string(profile).expect("the profile");
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")).expect("a total");
    Work { instructions: total.trim().parse().expect("a number"), statements: calls_of(&profile, "sqlite3_prepare_v3") }
}

/// How often a function was called ("Callgrind Format Specification": a name is written where its number comes first).
fn calls_of(profile: &str, function: &str) -> u64 {
    let named = profile.lines().find_map(|line| line.split_once("fn=")?.1.strip_suffix(function)?.strip_suffix(' '));
    let number = named.unwrap_or("never called");
    let mut is_callee = false;
    let mut calls = 0;
    for line in profile.lines() {
        if let Some(callee) = line.strip_prefix("cfn=") {
            is_callee = callee.split(' ').next() == Some(number);
        } else if let Some(count) = line.strip_prefix("calls=").filter(|_| is_callee) {
            calls += count.split(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a number");
        }
    }
    calls
}

/// The page faults of a call, with those of the fork that it began with.
fn page_faults(queue: &Queue, args: &[&str]) -> u64 {
    let program = queue.command(args);
    let mut shell = Command::new("sh");
    // proc(5): the 11th field is cminflt; the second, in brackets, is `sh`.
    shell.args(["-c", "\"$@\" >&2; read -r line </proc/$$/stat; set -- $line; echo \"${11}\"", "sh"]);
    let done = shell.arg(program.get_program()).args(program.get_args()).output().expect("sh runs");
    String::from_utf8_lossy(&done.stdout).trim().parse().unwrap_or_else(|_| panic!("{done:?}"))
}

#[test]
fn calls_of_front_ends_do_little() {
    let queue = Queue::new();
    // No more than a queue needs: each format costs a debug build 60,000 instructions to read.
    queue.configure(
        "state_dir = \"state\"\ncache.dir = \"cache\"\ndefaults.format = \"ok\"\n[queue.default]\nmin_free_disk = 0\n\
         [format.ok]\nextension = \"txt\"\ncommand = [\"cp\", \"/etc/passwd\", \"{output}\"]\n",
    );
    queue.request("ok", "A");
    queue.dispatch().code(0);
    queue.await_state("ok", "A", "ready");
    queue.run(["pause"]).code(0);
    queue.request("ok", "B");
    let _dispatcher = dispatcher(&queue);
    // Thousands of instructions, a third more than they are; statements; page faults, a third more, those of the loader included.
    for (args, code, instructions, statements, faults) in [
        (&["--quiet", "status", "--format", "ok", "A"][..], 0, 620, 0, 560),
        (&["--json", "status", "--format", "ok", "A"], 0, 2_450, 5, 620),
        (&["--json", "status", "--format", "ok", "B"], 3, 3_150, 7, 640),
        (&["--json", "request", "--format", "ok", "C"], 3, 4_700, 17, 660),
    ] {
        let work = work(&queue, args, code);
        // The title that was asked for is joined now, which costs about as much.
        let took = page_faults(&queue, args);
        println!("{args:?}: {} instructions, {} statements, {took} page faults", work.instructions, work.statements);
        assert!(work.instructions <= instructions * 1000, "{args:?}: {} instructions", work.instructions);
        assert!(work.statements <= statements, "{args:?}: {} statements", work.statements);
        assert!(took <= faults, "{args:?}: {took} page faults");
    }
}

/// Statements that look at every row, and who waits for them.
const WALKS: &[(&str, &str)] = &[
    ("list", "an operator who wants to see them"),
    ("moving_clear", "an operator whose queue moves"),
    ("moving_rows", "an operator whose queue moves"),
    ("tally", "an operator, and what watches"),
    ("tokens", "a tick that finds logs or work directories"),
];

#[test]
fn no_statement_of_a_front_end_or_a_worker_looks_at_every_row() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    let conn = rusqlite::Connection::open(queue.path("state/queue.db")).expect("the database");
    let statements =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/sqlite")).expect("the statements").flatten();
    let mut walks = Vec::new();
    for statement in statements.filter(|entry| entry.path().extension() == Some("sql".as_ref())) {
        let text = fs::read_to_string(statement.path()).expect("a statement");
        // Statements of a move are for each table.
        let text = text.replace("a_table", "jobs").replace("its_columns", "id").replace("its_values", "1");
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {text}")).expect("a plan");
        let mut rows = plan.raw_query();
        while let Some(row) = rows.next().expect("a line of the plan") {
            let step: String = row.get("detail").expect("its words");
            // In the index of tokens all queued jobs stand under NULL.
            let is_of_null = step.contains("jobs") && step.ends_with("(token=?)") && !text.contains(":token");
            if step == "SCAN jobs" || step == "SCAN runs" || is_of_null {
                walks.push(statement.path().file_stem().expect("a name").to_string_lossy().into_owned());
            }
        }
    }
    walks.sort();
    walks.dedup();
    let known: Vec<&str> = WALKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(walks, known);
}

#[test]
fn a_status_costs_few_calls_and_writes_nothing() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0);
    queue.await_state("ok", "A", "ready");
    queue.run(["pause"]).code(0);
    queue.request("ok", "B");
    let _dispatcher = dispatcher(&queue);
    // A line of text about a ready file says nothing that only the database knows.
    for (how, title, code, most, opened) in
        [("--quiet", "A", 0, 25, 0), ("--json", "A", 0, 100, 1), ("--quiet", "B", 3, 180, 1)]
    {
        let calls = calls(&queue, &[how, "status", "--format", "ok", title], code);
        calls.at_most(most);
        assert_eq!((calls.syncs(""), calls.transactions()), (0, 0));
        let is_write = |call: &str| call.starts_with("pwrite64(") || call.starts_with("write(");
        assert_eq!(calls.like(is_write), 1, "the answer");
        assert_eq!(calls.like(|call| call.starts_with("openat(") && call.contains("/queue.db\"")), opened);
        assert_eq!(calls.like(|call| call.starts_with("clone")), 0);
    }
}

#[test]
fn a_request_is_one_transaction_and_one_sync() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    queue.run(["pause"]).code(0);
    let _dispatcher = dispatcher(&queue);
    queue.request("ok", "A");
    let calls = calls(&queue, &["request", "--format", "ok", "B"], 3);
    calls.at_most(200);
    assert_eq!((calls.transactions(), calls.syncs("queue.db-wal>")), (1, 1 + calls.new_logs()));
    // SQLite syncs the log's directory once a process: the log may be new.
    assert_eq!(calls.syncs(""), calls.syncs("queue.db-wal>") + 1);
}

#[test]
fn an_export_of_a_backlog_is_three_syncs_and_one_transaction() {
    const EXPORTS: usize = 20;
    // An exporter that says nothing of its progress, which would be written too.
    let queue = Queue::with("[format.plain]\nextension = \"txt\"\ncommand = [\"cp\", \"/etc/passwd\", \"{output}\"]\n");
    queue.reconfigure("slots = 2", "slots = 1");
    queue.run(["init", "--quiet"]).code(0);
    for number in 0..EXPORTS {
        queue.request("plain", &number.to_string());
    }
    let processes = traced(&queue, &["dispatch", "--wait"], 0);
    let renames = |calls: &Calls| calls.like(|call| call.starts_with("rename(") && call.contains("/out/export.txt"));
    let worker = processes.iter().find(|calls| renames(calls) > 0).expect("a worker");
    assert_eq!(renames(worker), EXPORTS, "one worker did it all");

    let shards = worker.like(|call| call.starts_with("mkdir(") && !call.contains("/.work/"));
    assert_eq!(
        worker.like(|call| call.starts_with("mkdir(") && call.ends_with(" = 0")) - shards,
        6,
        "a clean work directory goes from run to run"
    );
    assert_eq!(worker.syncs("/out/export.txt>"), EXPORTS, "each file before its name");
    assert_eq!(worker.syncs("/cache>"), shards, "each new shard, once");
    let commits = EXPORTS + 1;
    assert_eq!(worker.transactions(), commits, "the first claim, then each end with the next claim");
    assert_eq!(worker.syncs("queue.db-wal>"), commits + worker.new_logs());
    let is_shard = |call: &str| call.rsplit_once("/cache/").is_some_and(|(_, shard)| shard.find('>') == Some(2));
    assert_eq!(
        worker.like(|call| call.starts_with("fsync(") && is_shard(call)),
        EXPORTS,
        "each name before its row goes"
    );
    let once = worker.syncs("/state>") + worker.syncs("queue.db>");
    assert!(once <= 2, "the log's directory, and the checkpoint at the end");
    assert_eq!(worker.syncs(""), 2 * EXPORTS + shards + worker.syncs("queue.db-wal>") + once, "and nothing else");
    // No start copies the worker (fork): each is a posix_spawn.
    let spawns = |call: &str| call.starts_with("clone") || call.starts_with("vfork(") || call.starts_with("fork(");
    assert_eq!(worker.like(|call| spawns(call) && call.contains("CLONE_VFORK")), EXPORTS);
    assert_eq!(worker.like(|call| spawns(call) && !call.contains("CLONE_VFORK")), 1, "the thread that beats");
}

#[test]
fn a_tick_looks_at_no_job_that_it_cannot_start() {
    let pages = |jobs: usize, is_paused: bool| {
        let queue = Queue::with("[format.missing]\ncommand = [\"eq-test-no-such-converter\", \"{output}\"]\n");
        queue.run(["init", "--quiet"]).code(0);
        let lines = (0..jobs).map(|number| format!("{{\"title\":\"{number}\",\"format\":\"missing\"}}\n"));
        fs::write(queue.path("batch"), lines.collect::<String>()).expect("a batch");
        queue.run(["request", "--batch", &queue.path("batch").to_string_lossy()]).code(0);
        if is_paused {
            queue.run(["pause"]).code(0);
        }
        let _dispatcher = dispatcher(&queue);
        // A missing converter was told by the dispatcher, and is an end all the same.
        calls(&queue, &["dispatch"], 69).like(|call| call.starts_with("pread64(") && call.contains("queue.db"))
    };
    for is_paused in [true, false] {
        let (few, many) = (pages(10, is_paused), pages(10_000, is_paused));
        println!("paused: {is_paused}; {few} pages read with ten jobs, {many} with ten thousand");
        assert!(many <= few + 20, "paused: {is_paused}; {few} pages read with ten jobs, {many} with ten thousand");
    }
}
