//! Exporters that one test alone needs, and looks at processes and locks from outside.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fs2::FileExt;

use crate::harness::{Process, Queue, eventually, lives, make_executable, now};

/// Adds a format whose exporter is a bash script; `$output`, `$title`, `$SCRATCH` and `note FILE LINE` are at hand, `whole`
/// writes a good file, and `is_alive PID` takes no zombie for a living process. `keys` are further lines of the format's table.
pub(crate) fn add_format(queue: &Queue, name: &str, keys: &str, body: &str) {
    let script = queue.path(format!("{name}.sh"));
    let head = "#!/bin/bash\noutput=$1 title=$2\nnote() { printf '%s\\n' \"$2\" >>\"$SCRATCH/$1\"; }\n\
                whole() { printf 'a good book: %s\\n' \"$title\" >\"$output\"; }\n\
                is_alive() { grep -qs '^State:.[^ZX]' /proc/$1/status; }\nnote STARTS \"$title\"\n";
    fs::write(&script, format!("{head}{body}\n")).expect("the script can be written");
    make_executable(&script);
    let config = fs::read_to_string(queue.path("config.toml")).expect("the configuration can be read");
    let (script, scratch) = (script.display(), queue.path("").display().to_string());
    queue.configure(&format!(
        "{config}[format.{name}]\nextension = \"txt\"\nenv = {{ SCRATCH = \"{scratch}\" }}\n{keys}\n\
         command = [\"{script}\", \"{{output}}\", \"{{title}}\"]\n"
    ));
}

/// The seconds that slow exporters take.
pub(crate) fn set_seconds(queue: &Queue, seconds: &str) {
    fs::write(queue.path("S"), seconds).expect("the scratch file can be written");
}

/// Sets the time limit of all formats.
pub(crate) fn set_timeout(queue: &Queue, timeout: &str) {
    queue.reconfigure("timeout = \"60s\"", &format!("timeout = \"{timeout}\""));
}

/// The process ids that exporters noted.
pub(crate) fn noted_pids(queue: &Queue) -> Vec<i32> {
    queue.scratch("PIDS").iter().map(|line| line.parse().expect("a process id")).collect()
}

/// Waits until that many process ids are noted.
#[track_caller]
pub(crate) fn await_pids(queue: &Queue, count: usize) -> Vec<i32> {
    eventually("the exporter notes its processes", || Some(noted_pids(queue)).filter(|pids| pids.len() >= count))
}

/// Those of the processes that are alive.
pub(crate) fn alive(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|pid| lives(*pid)).collect()
}

/// Lock files of the queue that somebody holds.
pub(crate) fn held_locks(queue: &Queue) -> Vec<String> {
    let slots = fs::read_dir(queue.path("state/slots")).expect("the slots").flatten().map(|entry| entry.path());
    let is_held = |path: &Path| {
        let file = File::options().read(true).write(true).open(path).expect("a lock file");
        file.try_lock_exclusive().is_err()
    };
    let paths = slots.chain([queue.path("cache/.lock")]).filter(|path| path.exists());
    paths.filter(|path| is_held(path)).map(|path| path.display().to_string()).collect()
}

/// What `body` gives, and how long it took.
pub(crate) fn timed<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    let start = now();
    let value = body();
    (value, start.elapsed())
}

/// Signals all of them in one call, so that it falls together as it does when a machine or a unit goes down.
pub(crate) fn signal_together(processes: &[Process], signal: &str) {
    let pids = processes.iter().map(|process| process.pid.to_string());
    // Some are gone already, which is what was wanted.
    let _ = Command::new("kill").arg(format!("-{signal}")).args(pids).stderr(Stdio::null()).status();
}
