//! Walls around an exporter: no network, and a file system that is read-only but for the run's own directory.
//!
//! A process can only put walls around itself, and an exporter does not; so where they are asked for, this program starts in
//! its place (`export-queue confine`, hidden), puts them up, and becomes the exporter by `exec`: same process, same group.
//! Its standard input is a pipe that `exec` closes. Whatever comes through that pipe is why there is no exporter: nothing is
//! ever run without the walls that were asked for.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules,
};
use nix::sched::{CloneFlags, unshare};

use crate::clock;
use crate::config::Limits;
use crate::exit::{Exit, Refusal, is_shortage};
use crate::identity::STAGE;

/// Devices that programs write to and that keep nothing.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/tty"];

/// Where a browser sets up its own sandbox by writing its user map. For an ordinary user there is nothing in it but its own
/// processes, and Landlock keeps it from the memory of those outside; root could turn the whole machine's screws there.
const PROCESSES: &str = "/proc";

/// The first Landlock that also keeps files from being cut off (Linux 6.2).
const LANDLOCK: ABI = ABI::V3;

/// How to mend a kernel that does not let the network be cut.
const MEND_NETWORK: &str = "let the owner of the queue make user namespaces (sysctl user.max_user_namespaces, \
                            kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a container, \
                            its seccomp profile), or set no_network = false";

/// How to mend a kernel that cannot keep files from being written.
const MEND_FILES: &str = "it needs Linux 6.2 or newer with landlock among the LSMs it was started with (lsm=), \
                          or set read_only = false";

/// How long a trial is believed: a dispatcher looks many times a second, and kernels seldom change their mind.
const BELIEVED: Duration = Duration::from_secs(10);

/// A trial: which walls, when (monotonic clock), and what stood in the way.
type Trial = ((bool, bool), Duration, Option<(Exit, String)>);

/// What was tried lately.
static KNOWN: Mutex<Vec<Trial>> = Mutex::new(Vec::new());

/// What a confined start has to say when it failed.
#[derive(Debug)]
pub struct Complaint(io::PipeReader);

impl Complaint {
    /// Why there was no exporter; `None` when there was one. To be asked once the process has ended.
    pub fn read(mut self) -> Option<String> {
        // Whoever else may hold the other end, nobody waits for more than what is there.
        let _ = rustix::io::ioctl_fionbio(&self.0, true);
        let mut text = Vec::new();
        let _ = self.0.read_to_end(&mut text);
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}

/// Whether these limits ask for any wall.
pub fn is_asked(limits: &Limits) -> bool {
    limits.no_network || limits.read_only
}

/// The walls that are asked for, as they are configured.
pub fn names(limits: &Limits) -> Vec<&'static str> {
    let walls = [(limits.no_network, "no_network"), (limits.read_only, "read_only")];
    walls.into_iter().filter_map(|(asked, name)| asked.then_some(name)).collect()
}

/// This program, to put walls up and become whatever is appended after `--`.
fn stage(limits: &Limits, writable: &Path) -> Command {
    // The link leads to this very version, also after another one was installed in its place.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("export-queue").arg(STAGE);
    if limits.no_network {
        command.arg("--no-network");
    }
    if limits.read_only {
        command.arg("--writable").arg(writable);
    }
    command
}

/// A program behind the walls that the limits ask for, and what will tell whether they stood.
///
/// # Errors
/// This machine has no more descriptors.
pub(super) fn wrap(program: &Path, limits: &Limits, writable: &Path) -> io::Result<(Command, Option<Complaint>)> {
    if !is_asked(limits) {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        return Ok((command, None));
    }
    let (reader, writer) = io::pipe()?;
    let mut command = stage(limits, writable);
    command.stdin(writer).arg("--").arg(program);
    Ok((command, Some(Complaint(reader))))
}

/// Why this machine cannot put up the walls that the limits ask for, with the mend (78), or cannot try now (75); tried out by
/// a process of its own, and believed for ten seconds.
pub fn obstacle(limits: &Limits) -> Option<(Exit, String)> {
    if !is_asked(limits) {
        return None;
    }
    let walls = (limits.no_network, limits.read_only);
    let now = clock::monotonic();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, at, _)| now.saturating_sub(*at) < BELIEVED);
    if let Some((_, _, found)) = known.iter().find(|(tried, ..)| *tried == walls) {
        return found.clone();
    }
    let found = try_out(limits);
    known.push((walls, now, found.clone()));
    found
}

fn try_out(limits: &Limits) -> Option<(Exit, String)> {
    let tried = stage(limits, Path::new("/")).stdin(Stdio::null()).env_clear().output();
    match tried {
        Ok(said) if said.status.success() => None,
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            let words = super::one_line(text.trim_start_matches("export-queue: "));
            let words = if words.is_empty() { format!("`{STAGE}` ended with {}", said.status) } else { words };
            Some((Exit::Config, words))
        }
        Err(error) => {
            let exit = if is_shortage(&error) { Exit::TryLater } else { Exit::Config };
            Some((exit, format!("`{STAGE}` cannot be started: {error}")))
        }
    }
}

/// Puts walls up around this process and becomes the command; without a command it only tries whether they can be had.
///
/// # Errors
/// A wall cannot be had (78), or the program cannot be executed (69); the other end of standard input is told.
pub fn enter(no_network: bool, writable: Option<&Path>, command: &[OsString]) -> Result<()> {
    let complaints = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).context("keeping the pipe")?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?).context("emptying standard input")?;
    let entered = put_up(no_network, writable).and_then(|()| match command.split_first() {
        Some((program, arguments)) => Err(become_program(program, arguments)),
        None => Ok(()),
    });
    if let Err(error) = &entered {
        // A worker that has died needs no answer.
        let _ = File::from(complaints).write_all(format!("{error:#}").as_bytes());
    }
    entered
}

fn put_up(no_network: bool, writable: Option<&Path>) -> Result<()> {
    if no_network {
        cut_network().map_err(|error| {
            Refusal::config(format!("the kernel does not cut the network: {error}; {MEND_NETWORK}"))
        })?;
    }
    if let Some(writable) = writable {
        write_only_below(writable).map_err(|error| {
            Refusal::config(format!("the kernel does not make the file system read-only: {error}; {MEND_FILES}"))
        })?;
    }
    Ok(())
}

fn become_program(program: &OsString, arguments: &[OsString]) -> anyhow::Error {
    let error = Command::new(program).args(arguments).exec();
    Refusal::with(Exit::ExporterMissing, format!("cannot execute {}: {error}", program.to_string_lossy()))
}

/// A network of its own, which has nothing but a loopback that is down. An ordinary user may make one only inside a user
/// namespace of its own; there it stays the user that it is.
fn cut_network() -> io::Result<()> {
    match unshare(CloneFlags::CLONE_NEWNET) {
        Err(nix::Error::EPERM) => {}
        other => return Ok(other?),
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Nothing can be written, made, moved or removed but below `writable`; where the kernel can (Linux 6.12), nothing outside
/// can be signalled either.
fn write_only_below(writable: &Path) -> Result<(), landlock::RulesetError> {
    let access = AccessFs::from_write(LANDLOCK);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(access)?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::from_all(ABI::V6))?
        .create()?;
    let own = (!rustix::process::geteuid().is_root()).then_some(Path::new(PROCESSES));
    let places = DEVICES.iter().map(Path::new).chain([writable]).chain(own);
    ruleset.add_rules(path_beneath_rules(places, access))?.restrict_self().map(drop)
}
