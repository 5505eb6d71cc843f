//! Real hosts: three machines, each with a network of its own, one PostgreSQL on the wire between them, one cache.
//!
//! `EXPORT_QUEUE_TEST_TITLES` says how many exports are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::converters::heavy;
use crate::harness::hosts::{Host, Switch};
use crate::harness::server::Server;
use crate::harness::{Queue, eventually, make_executable, now};

/// How many exports are asked for where nobody says.
const TITLES: usize = 240;

/// An exporter of one process, which looks first whether the former exporters of its title are dead. Where its machine is to be
/// slow (`slow-NODE`) the first takes twice as long as a lease and the others half as long.
const SCRIPT: &str = r#"#!/bin/bash
output=$1 title=$2 before="$SCRATCH/runs/${2// /_}"
note() { echo "$1 $title|$NODE|$EXPORT_QUEUE_RUN" >>"$SCRATCH/LOG"; }
is_alive() { local stat; read -r -a stat 2>/dev/null <"/proc/$1/stat" && [ "${stat[21]}" = "$2" ] && [[ ${stat[2]} != [ZX] ]]; }
nap() { read -rt "$1" <>"$SCRATCH/never"; }
while read -r pid since; do
  if is_alive "$pid" "$since"; then note TWICE; fi
done 2>/dev/null <"$before"
read -r -a stat </proc/$$/stat
echo "$$ ${stat[21]}" >>"$before"
note start
if mkdir "$SCRATCH/slow-$NODE/first" 2>/dev/null; then
  note slow; nap 20
elif [ -e "$SCRATCH/slow-$NODE" ]; then
  note slow; nap 5
else
  nap "0.$((RANDOM % 7 + 3))"
fi
printf 'a good book: %s\n' "$title" >"$output"
note end
"#;

/// A machine, its cron and its front end.
struct Machine {
    queue: Queue,
    number: usize,
    host: Host,
}

/// What the log of exporters says.
#[derive(Default)]
struct Runs {
    /// Run → node and title.
    started: BTreeMap<String, (usize, String)>,
    slow: BTreeSet<String>,
    ended: BTreeSet<String>,
    twice: Vec<String>,
}

fn runs(first: &Queue) -> Runs {
    let mut runs = Runs::default();
    for line in first.scratch("LOG") {
        let (event, about) = line.split_once(' ').expect("an event");
        let fields: Vec<&str> = about.split('|').collect();
        let &[title, node, run] = fields.as_slice() else { panic!("{line}") };
        match event {
            "start" => drop(runs.started.insert(run.to_owned(), (node.parse().expect("a node"), title.to_owned()))),
            "slow" => drop(runs.slow.insert(run.to_owned())),
            "end" => drop(runs.ended.insert(run.to_owned())),
            _ => runs.twice.push(line.clone()),
        }
    }
    runs
}

fn titles() -> usize {
    std::env::var("EXPORT_QUEUE_TEST_TITLES").ok().and_then(|text| text.parse().ok()).unwrap_or(TITLES)
}

/// Three machines on a switch, two slots each, and two of them with clocks that are wrong; the server is on the switch itself.
fn machines(switch: &Switch, server: &'static Server) -> Vec<Machine> {
    let first = Queue::on(server, "[node]\nlease = \"10s\"\n");
    let (script, scratch) = (first.path("exporter"), first.path("").display().to_string());
    fs::write(&script, SCRIPT).expect("a script");
    make_executable(&script);
    fs::create_dir(first.path("runs")).expect("a directory");
    rustix::fs::mkfifoat(rustix::fs::CWD, first.path("never"), rustix::fs::Mode::RWXU).expect("a pipe");
    let format = format!(
        "[format.book]\nextension = \"txt\"\nenv = {{ SCRATCH = \"{scratch}\", NODE = \"2\" }}\n\
         command = [\"{}\", \"{{output}}\", \"{{title}}\"]\n",
        script.display()
    );
    first.reconfigure(&format!("?host={}", server.dir().display()), "");
    first.reconfigure("queue@/", &format!("queue@{}/", switch.host().address()));
    first.reconfigure("[node]\n", &format!("{format}[node]\n"));
    let others = [3, 4].map(|number| {
        let queue = Queue::beside(&first);
        queue.reconfigure("NODE = \"2\"", &format!("NODE = \"{number}\""));
        queue
    });
    let queues = std::iter::once(first).chain(others);
    let mut machines: Vec<Machine> = Vec::new();
    for ((number, skew), mut queue) in [(2, "-3600"), (3, "3600"), (4, "0")].into_iter().zip(queues) {
        let host = switch.connect(number);
        queue.set("EXPORT_QUEUE_TEST_CLOCK", skew);
        queue.move_to(&host);
        queue.run(["init", "--quiet"]).code(0);
        machines.push(Machine { queue, number, host });
    }
    machines
}

impl Machine {
    /// Whoever works on it holds what its `nodes` row is called.
    fn id(&self) -> String {
        let meta = fs::metadata(self.queue.path("state")).expect("a state directory");
        format!("{}:{}:{}", export_queue::process::boot_id(), meta.dev(), meta.ino())
    }

    /// Ticks as cron starts them, one after another, whatever becomes of them.
    fn cron(&self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let said = self.queue.run(["dispatch", "--for", "5s"]);
            assert!([0, 75, -1].contains(&said.code), "{said:?}");
        }
    }

    /// Polls titles that were accepted: none is ever absent or failed. The slowest answer.
    fn front_end(&self, over: &AtomicBool) -> Duration {
        let mut slowest = Duration::ZERO;
        for round in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let title = format!("Book {}", (round * 7 + self.number) % titles());
            let begun = now();
            let said = self.queue.run(["status", "--format", "book", "--", &title]);
            slowest = slowest.max(begun.elapsed());
            assert!([0, 3, 4, 75].contains(&said.code), "on host {}: {said:?}", self.number);
            std::thread::sleep(Duration::from_millis(200));
        }
        slowest
    }

    /// Makes its exporters slow and waits until both of its slots hold such a one; their runs.
    fn fill_with_slow(&self, first: &Queue) -> BTreeSet<String> {
        let sign = first.path(format!("slow-{}", self.number));
        fs::create_dir(&sign).expect("a sign");
        let slow = eventually("both slots hold a slow exporter", || {
            let runs = runs(first);
            let own = |run: &&String| runs.started.get(*run).is_some_and(|(node, _)| *node == self.number);
            let slow: BTreeSet<String> = runs.slow.difference(&runs.ended).filter(own).cloned().collect();
            (slow.len() == 2).then_some(slow)
        });
        fs::remove_dir_all(sign).expect("the sign");
        slow
    }

    /// Kills its dispatchers and workers, and nothing else.
    fn kill_all(&self) {
        let is_program = |process: &&crate::harness::Process| process.command.contains("export-queue\0--config");
        let all = self.queue.processes();
        let hit: Vec<_> = all
            .iter()
            .filter(is_program)
            .filter(|p| p.command.contains("\0dispatch") || p.command.contains("\0work\0"))
            .collect();
        assert!(hit.len() >= 3, "a dispatcher and two workers: {hit:?}");
        for process in hit {
            process.kill("KILL");
        }
    }
}

/// Ends crons and front ends, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hosts_that_are_cut_off_killed_and_skewed_make_each_title_once() {
    let _turn = heavy();
    let switch = Switch::new();
    let server = Server::on(switch.host());
    let machines = machines(&switch, server);
    machines[0].host.lose(10);
    let begun = now();
    let count = titles();
    let lines: Vec<String> = (0..count).map(|n| format!("{{\"title\":\"Book {n}\",\"format\":\"book\"}}\n")).collect();
    let first = &machines[0].queue;
    fs::write(first.path("batch"), lines.concat()).expect("a batch");
    // In one call, where one packet in ten is lost.
    first.run(["request", "--batch", &first.path("batch").to_string_lossy()]).code(0);
    let over = AtomicBool::new(false);
    let slowest = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for machine in &machines {
            scope.spawn(|| machine.cron(&over));
            scope.spawn(|| {
                let answer = machine.front_end(&over);
                slowest.lock().expect("answers").push(answer);
            });
        }
        afflict(&switch, server, &machines);
        let mut made = 0;
        while made < count {
            made = eventually("another is made", || {
                let now_made = count - first.sql("SELECT id FROM jobs").len();
                (now_made > made || now_made == count).then_some(now_made)
            });
        }
    });
    let took = begun.elapsed();
    check_each_was_made_once(&machines, count);
    println!("{}", figures(&machines, count, took));
    println!("slowest answers of front ends: {:?}", slowest.into_inner().expect("answers"));
}

/// What hosts suffer, one after another.
fn afflict(switch: &Switch, server: &Server, machines: &[Machine]) {
    let [lossy, cut, killed] = machines else { panic!("three machines") };
    let first = &lossy.queue;
    eventually("all work", || (runs(first).ended.len() > 12).then_some(()));
    let lost = cut.fill_with_slow(first);
    switch.unplug(&cut.host);
    answers_while_cut_off(cut, first);
    eventually("others have begun what it had", || {
        let runs = runs(first);
        let titles: BTreeSet<&String> = lost.iter().filter_map(|run| Some(&runs.started.get(run)?.1)).collect();
        let again = runs.started.iter().filter(|(run, (_, title))| !lost.contains(*run) && titles.contains(title));
        (again.count() == 2).then_some(())
    });
    server.down();
    server.up();
    killed.fill_with_slow(first);
    killed.kill_all();
    switch.plug(&cut.host);
    let before = runs(first).started.values().filter(|(node, _)| *node == cut.number).count();
    eventually("it works again", || {
        let now = runs(first).started.values().filter(|(node, _)| *node == cut.number).count();
        (now > before).then_some(())
    });
    server.down();
    server.up();
}

/// A front end that is cut off has what the cache has, and is told "later" for the rest.
fn answers_while_cut_off(cut: &Machine, first: &Queue) {
    let runs = runs(first);
    let (_, ready) = runs.ended.iter().find_map(|run| runs.started.get(run)).expect("something was made");
    eventually("what is ready is served", || {
        (cut.queue.run(["status", "--format", "book", ready]).code == 0).then_some(())
    });
    let begun = now();
    let said = cut.queue.run(["request", "--format", "book", "Something else"]).code(75);
    assert!(begun.elapsed() < Duration::from_secs(5), "told {said:?} after {:?}", begun.elapsed());
}

fn check_each_was_made_once(machines: &[Machine], count: usize) {
    let first = &machines[0].queue;
    let runs = runs(first);
    assert_eq!(runs.twice, [""; 0], "an exporter was started while its title's former exporter lived");
    let ready = "SELECT count(*), count(DISTINCT filename) FROM runs WHERE outcome = 'ready'";
    assert_eq!(first.sql(ready), [format!("{count}|{count}")]);
    let outcomes = "SELECT DISTINCT outcome FROM runs WHERE outcome NOT IN ('ready', 'interrupted', 'stopped')";
    assert_eq!(first.sql(outcomes), [""; 0], "nothing failed");
    let files = first.published();
    let books: BTreeSet<String> = files.iter().map(|file| fs::read_to_string(file).expect("a file")).collect();
    assert_eq!((files.len(), books.len()), (count, count));
    for machine in machines {
        machine.queue.assert_quiet();
        let worked = runs.started.values().any(|(node, _)| *node == machine.number);
        assert!(worked, "host {} has not worked", machine.number);
    }
}

fn figures(machines: &[Machine], count: usize, took: Duration) -> String {
    let first = &machines[0].queue;
    let runs = runs(first);
    let ids: BTreeMap<String, usize> = machines.iter().map(|machine| (machine.id(), machine.number)).collect();
    let rows = first.sql("SELECT token, node FROM runs WHERE outcome = 'interrupted'");
    let taken = rows.iter().filter(|row| {
        let (token, node) = row.split_once('|').expect("two columns");
        runs.started.get(token).is_some_and(|(its, _)| ids.get(node) != Some(its))
    });
    let taken = taken.count();
    let ready: BTreeSet<String> = first.sql("SELECT token FROM runs WHERE outcome = 'ready'").into_iter().collect();
    let fenced = runs.ended.difference(&ready).count();
    let share = |number| runs.started.values().filter(|(node, _)| *node == number).count();
    let shares: Vec<usize> = machines.iter().map(|machine| share(machine.number)).collect();
    format!(
        "{count} titles in {took:.0?}: {} exporters started ({shares:?} by host), {} interruptions, {taken} taken over by \
         another host, {fenced} files made and not published",
        runs.started.len(),
        rows.len(),
    )
}
