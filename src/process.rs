//! Processes: who lives, who belongs to a run, and how a whole tree is ended.
//!
//! While a worker lives this is exact: it is the subreaper of its exporter, so whatever leaves the group or the session
//! becomes its child, and "no child left" proves the tree gone. When the worker is dead, [`end_remnants`] looks from
//! outside: the recorded group, the marker in the environment, the run's log open for writing, and whatever descends from
//! those. Each alone misses some (Chromium overwrites its environment, its crash handlers leave the group).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

use crate::clock;
use crate::identity::{Identity, STAGE};

/// The variable that marks every process of a run.
pub const MARKER: &str = "EXPORT_QUEUE_RUN";

/// What `/proc/PID/stat` says, as far as it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Process id and start time.
    pub identity: Identity,
    /// The parent's process id.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// The state letter; `Z` is a zombie, which is dead.
    pub state: char,
    /// Processor time of itself and of children it has waited for, in clock ticks.
    pub cpu_ticks: u64,
}

impl Stat {
    fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Reads one process; `None` when there is none with that number.
pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command's name in brackets and may hold anything, brackets too.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
    Some(Stat {
        identity: Identity { pid, start: number(22)? },
        parent: i32::try_from(number(4)?).ok()?,
        group: i32::try_from(number(5)?).ok()?,
        state: fields.first()?.chars().next()?,
        cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
    })
}

/// Every process that this process can see.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

/// This process.
pub fn myself() -> Identity {
    static MYSELF: OnceLock<Identity> = OnceLock::new();
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    read_once(&MYSELF, || stat(pid).map(|stat| stat.identity)).unwrap_or(Identity { pid, start: 0 })
}

/// The id of this boot of the machine.
pub fn boot_id() -> String {
    static BOOT: OnceLock<String> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    read_once(&BOOT, || read().map(|text| text.trim().to_owned())).unwrap_or_default()
}

/// What stays the same while this process lives, read when it is first needed; a failed reading is tried again.
fn read_once<T: Clone>(kept: &OnceLock<T>, read: impl FnOnce() -> Option<T>) -> Option<T> {
    kept.get().cloned().or_else(|| read().map(|value| kept.get_or_init(|| value).clone()))
}

/// Whether that very process, and not a later one with its number, is alive.
pub fn is_alive(process: Identity) -> bool {
    stat(process.pid).is_some_and(|now| now.identity == process && now.lives())
}

/// Sends a signal to that very process; false when it is gone.
pub fn signal(process: Identity, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return false;
    };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The descriptor pins the process; only now can its identity be compared without a race.
    is_alive(process) && pidfd_send_signal(&pidfd, signal).is_ok()
}

/// Every process that descends from `root`, itself not included. A process that is born or loses its parent meanwhile may be
/// missed; whoever needs all of them looks again.
pub fn descendants(root: i32) -> Vec<Stat> {
    // Not every kernel lists children (`CONFIG_PROC_CHILDREN`); without the list all processes are looked at.
    if !Path::new("/proc/self/task").join(myself().pid.to_string()).join("children").exists() {
        return closure(&all(), HashSet::from([root]));
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let children = children(parent);
        parents.extend(&children);
        found.extend(children.into_iter().filter_map(stat));
    }
    found
}

/// The children of all threads of a process (`/proc/PID/task/TID/children`).
fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

fn closure(processes: &[Stat], mut family: HashSet<i32>) -> Vec<Stat> {
    let roots = family.clone();
    loop {
        let before = family.len();
        let children = processes.iter().filter(|p| family.contains(&p.parent)).map(|p| p.identity.pid);
        let children: Vec<i32> = children.collect();
        family.extend(children);
        if family.len() == before {
            break;
        }
    }
    let is_new = |p: &&Stat| family.contains(&p.identity.pid) && !roots.contains(&p.identity.pid);
    processes.iter().filter(is_new).copied().collect()
}

/// Memory of a process in bytes: its proportional share (PSS), or 0 when it is gone or unreadable.
pub fn memory(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// Clock ticks a second, the unit of [`Stat::cpu_ticks`].
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Makes the kernel's choice fall on that process first when memory runs out.
pub fn prefer_as_oom_victim(pid: i32) {
    if let Err(error) = fs::write(format!("/proc/{pid}/oom_score_adj"), "800") {
        tracing::debug!("cannot set oom_score_adj of {pid}: {error}");
    }
}

/// Becomes the parent of whatever descends from this process and loses its own parent.
///
/// # Errors
/// The kernel refuses.
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// How the leader of a tree ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What a wait on a tree came back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The leader has ended.
    Ended(Ended),
    /// Something was written to the wake-up descriptor.
    Called,
    /// The time was up.
    Time,
}

/// An exporter and everything that comes of it; this process must be a subreaper and have no other children.
#[derive(Debug)]
pub struct Tree {
    leader: Pid,
    identity: Identity,
    pidfd: OwnedFd,
    ended: Option<Ended>,
}

impl Tree {
    /// Starts the command as leader of a process group of its own.
    ///
    /// # Errors
    /// Those of `exec` (`NotFound`: there is no such program) and of a machine that has run out of something.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let child = command.process_group(0).spawn()?;
        let leader = Pid::from_child(&child);
        // Nobody has waited for the child, so its number is its own, dead or alive.
        let pid = leader.as_raw_nonzero().get();
        let pidfd = pidfd_open(leader, PidfdFlags::empty()).inspect_err(|_| {
            let _ = rustix::process::kill_process(leader, Signal::KILL);
        })?;
        let start = stat(pid).map_or(0, |stat| stat.identity.start);
        Ok(Self { leader, identity: Identity { pid, start }, pidfd, ended: None })
    }

    /// The leader.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Waits until the leader ends, `wake` becomes readable or `patience` is over.
    ///
    /// # Errors
    /// `poll` or `wait` fails.
    pub fn wait(&mut self, wake: BorrowedFd<'_>, patience: Duration) -> io::Result<Woken> {
        if let Some(ended) = self.ended {
            return Ok(Woken::Ended(ended));
        }
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let called = {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            fds[1].revents().contains(PollFlags::IN)
        };
        self.reap()?;
        Ok(match self.ended {
            Some(ended) => Woken::Ended(ended),
            None if called => Woken::Called,
            None => Woken::Time,
        })
    }

    /// Asks the group to end.
    pub fn terminate(&self) {
        // The leader is not reaped or its group is not empty, or else the signal finds nobody; both are fine.
        let _ = rustix::process::kill_process_group(self.leader, Signal::TERM);
        let _ = rustix::process::kill_process_group(self.leader, Signal::CONT);
    }

    /// Ends whatever is left, the leader too; true when it is proved gone, false when something outlived `patience`.
    ///
    /// # Errors
    /// `wait` fails.
    pub fn end(&mut self, patience: Duration) -> io::Result<bool> {
        let until = clock::monotonic() + patience;
        let mut pause = Duration::from_micros(500);
        while self.reap()? {
            if self.ended.is_none() {
                let _ = rustix::process::kill_process_group(self.leader, Signal::KILL);
            }
            for child in descendants(rustix::process::getpid().as_raw_nonzero().get()) {
                signal(child.identity, Signal::KILL);
            }
            if !self.reap()? {
                break;
            }
            if clock::monotonic() >= until {
                return Ok(false);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        Ok(true)
    }

    /// Whether anything of the tree is left; takes the dead away and notes how the leader ended.
    ///
    /// # Errors
    /// `wait` fails.
    pub fn reap(&mut self) -> io::Result<bool> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(None) => return Ok(true),
                Ok(Some((pid, status))) if pid == self.leader => {
                    let code = status.exit_status().map(Ended::Code);
                    let signal = status.terminating_signal().map(Ended::Signal);
                    self.ended = code.or(signal);
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How the leader ended, once it has.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }
}

/// What is known of a run whose worker is dead.
#[derive(Debug, Clone)]
pub struct Trace<'a> {
    /// The run's token.
    pub token: &'a str,
    /// The log that its exporter appends to.
    pub log: &'a Path,
    /// The exporter, if the record names it and is of this boot.
    pub leader: Option<Identity>,
}

/// Ends what is left of a run whose worker is dead; gives back what is still there after `patience`.
pub fn end_remnants(trace: &Trace<'_>, patience: Duration) -> Vec<Identity> {
    let until = clock::monotonic() + patience;
    let mut pause = Duration::from_millis(1);
    loop {
        let found = stop_all(trace);
        for process in &found {
            signal(*process, Signal::KILL);
        }
        let left: Vec<_> = found.into_iter().filter(|process| is_alive(*process)).collect();
        if left.is_empty() && remnants(trace).is_empty() {
            return left;
        }
        if clock::monotonic() >= until {
            return left;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Stops every process of the run, looking again until two looks find nothing new, so that none can fork away.
fn stop_all(trace: &Trace<'_>) -> HashSet<Identity> {
    let mut found = HashSet::new();
    let mut quiet_looks = 0;
    while quiet_looks < 2 {
        let new: Vec<_> = remnants(trace).into_iter().filter(|process| !found.contains(process)).collect();
        quiet_looks = if new.is_empty() { quiet_looks + 1 } else { 0 };
        if found.is_empty() && new.is_empty() {
            break;
        }
        for process in new {
            signal(process, Signal::STOP);
            found.insert(process);
        }
    }
    found
}

/// The processes of our user that belong to a run whose worker is dead.
fn remnants(trace: &Trace<'_>) -> Vec<Identity> {
    let me = myself();
    let uid = rustix::process::geteuid().as_raw();
    let log = fs::metadata(trace.log).ok().map(|meta| (meta.dev(), meta.ino()));
    let processes: Vec<Stat> =
        all().into_iter().filter(|p| p.lives() && p.identity != me && owner(p.identity.pid) == Some(uid)).collect();
    let group = trace.leader.filter(|leader| stat(leader.pid).is_none_or(|now| now.identity == *leader));
    let belongs = |p: &Stat| match marker(p.identity.pid) {
        Some(token) if token == trace.token => true,
        Some(_) => false,
        None => group.is_some_and(|leader| leader.pid == p.group) || log.is_some_and(|log| writes(p.identity.pid, log)),
    };
    let direct: Vec<Stat> =
        processes.iter().filter(|p| belongs(p) && !is_this_program(p.identity.pid)).copied().collect();
    let family = closure(&processes, direct.iter().map(|p| p.identity.pid).collect());
    let foreign = |p: &Stat| marker(p.identity.pid).is_some_and(|token| token != trace.token);
    let heirs = family.into_iter().filter(|p| !foreign(p) && !is_this_program(p.identity.pid));
    direct.iter().copied().chain(heirs).map(|p| p.identity).collect()
}

fn owner(pid: i32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid())
}

/// The token that a process was started with, if its environment can be read and holds one.
fn marker(pid: i32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{MARKER}=");
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(prefix.as_bytes()))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Whether a process has that file open for writing.
fn writes(pid: i32, file: (u64, u64)) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let same = fs::metadata(entry.path()).is_ok_and(|meta| (meta.dev(), meta.ino()) == file);
        // The link's own mode tells how the descriptor was opened.
        same && fs::symlink_metadata(entry.path()).is_ok_and(|link| link.mode() & 0o200 != 0)
    })
}

/// Whether a process runs this very program, and not to become an exporter; a replaced binary counts by its path.
pub fn is_this_program(pid: i32) -> bool {
    let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let Some(theirs) = exe(&pid.to_string()) else {
        return false;
    };
    let Some(ours) = exe("self") else {
        return false;
    };
    let plain = |path: &Path| path.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
    plain(&theirs) == plain(&ours) && !is_stage(pid)
}

/// Whether a process of this program is about to become an exporter.
fn is_stage(pid: i32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1) == Some(STAGE.as_bytes())
}

/// The processes of this program that have the file with that device and inode open.
pub fn holders(file: (u64, u64)) -> Vec<Identity> {
    let me = myself();
    let has_open = |pid: i32| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| fs::metadata(entry.path()).is_ok_and(|m| (m.dev(), m.ino()) == file))
    };
    let ours = |p: &Stat| p.lives() && p.identity != me && is_this_program(p.identity.pid) && has_open(p.identity.pid);
    all().into_iter().filter(ours).map(|p| p.identity).collect()
}

/// Closes every descriptor above standard error, whatever this process was started with.
pub fn close_inherited() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The listing itself had one open, which is gone by now.
    let is_open = |fd: &i32| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    for fd in open.into_iter().filter(|fd| *fd > 2 && is_open(fd)) {
        // SAFETY: called first thing, before this process has opened anything of its own, so nobody owns these numbers.
        unsafe { rustix::io::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_is_not_a_later_one() {
        let me = myself();
        assert!(is_alive(me));
        assert!(!is_alive(Identity { start: me.start + 1, ..me }));
        assert!(!signal(Identity { start: me.start + 1, ..me }, Signal::KILL));
        assert!(memory(me.pid) > 0);
    }

    #[test]
    fn children_of_children_are_found_by_either_way() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo up; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        let pid = child.id().cast_signed();
        let identities = |found: Vec<Stat>| found.into_iter().map(|process| process.identity).collect::<Vec<_>>();
        let by_scan = identities(closure(&all(), HashSet::from([pid])));
        let by_list = identities(descendants(pid));
        assert_eq!(by_list, by_scan);
        assert_eq!(by_list.len(), 1);
        for process in by_list {
            signal(process, Signal::KILL);
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_closure_takes_grandchildren_and_leaves_strangers() {
        let p =
            |pid, parent| Stat { identity: Identity { pid, start: 1 }, parent, group: pid, state: 'S', cpu_ticks: 0 };
        let family = closure(&[p(2, 1), p(3, 2), p(4, 9)], HashSet::from([1]));
        assert_eq!(family.iter().map(|p| p.identity.pid).collect::<Vec<_>>(), [2, 3]);
    }
}
