//! `check`: looks at configuration, exporters, database, cache and surroundings, and says what is wrong and how to mend it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::Result;

use crate::bind::{self, Home};
use crate::clock;
use crate::config::{self, Loaded};
use crate::dispatch;
use crate::exit::{Exit, exit_of};
use crate::exporter::{self, confine};
use crate::gates;
use crate::lock;
use crate::request;
use crate::store::{Filter, Store};

/// The longest cache directory, in bytes, below which a browser's socket fits into the 107 bytes of a socket's path.
const LONGEST_CACHE: usize = 31;

/// How a line of the report stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Works, but look at it.
    Warn,
    /// Does not work; with the exit code that it is worth.
    Fail(Exit),
}

impl Grade {
    /// The word that is printed.
    pub fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail(_) => "fail",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone)]
pub struct Line {
    /// How it stands.
    pub grade: Grade,
    /// What was looked at.
    pub about: &'static str,
    /// What was found, and the mend.
    pub message: String,
}

/// The report.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Its lines, in order.
    pub lines: Vec<Line>,
}

impl Report {
    fn add(&mut self, grade: Grade, about: &'static str, message: impl Into<String>) {
        self.lines.push(Line { grade, about, message: message.into() });
    }

    fn result<T>(&mut self, about: &'static str, result: Result<T>, well: impl FnOnce(&T) -> String) -> Option<T> {
        match result {
            Ok(value) => {
                self.add(Grade::Ok, about, well(&value));
                Some(value)
            }
            Err(error) => {
                self.add(Grade::Fail(exit_of(&error)), about, format!("{error:#}"));
                None
            }
        }
    }

    /// Adds a failure.
    pub fn fail(&mut self, about: &'static str, error: &anyhow::Error) {
        self.add(Grade::Fail(exit_of(error)), about, format!("{error:#}"));
    }

    /// How the program ends: with the gravest failure.
    pub fn exit(&self) -> Exit {
        let failures = self.lines.iter().filter_map(|line| match line.grade {
            Grade::Fail(exit) => Some(exit),
            Grade::Ok | Grade::Warn => None,
        });
        failures.fold(Exit::Done, Exit::graver)
    }
}

/// What is to be looked at before root becomes the owner of the queue.
pub fn before_change_of_user(loaded: &Loaded, report: &mut Report) {
    let path = loaded.path.as_ref().map_or_else(|| "the environment".to_owned(), |path| path.display().to_string());
    report.add(Grade::Ok, "configuration", path);
    for warning in config::warnings(&loaded.config) {
        report.add(Grade::Warn, "configuration", warning);
    }
    if fs::metadata(&loaded.config.state_dir).is_ok_and(|meta| meta.uid() == 0) {
        report.add(
            Grade::Warn,
            "user",
            "the queue belongs to root: exporters run as root; give state_dir and cache.dir to a user of their own",
        );
    }
}

/// Looks at everything else.
pub fn check(home: &Home, report: &mut Report) {
    check_surroundings(home, report);
    if report.result("owner", home.refuse_others(), |()| bind::user_name(rustix::process::geteuid().as_raw())).is_none()
    {
        return;
    }
    if home.is_shared() && home.is_set_up() {
        let seen = report.result("cache.dir", home.see_cache(), |()| home.layout.cache.display().to_string());
        if seen.is_none() {
            return;
        }
    }
    let Some(store) = report.result("database", home.open_as_owner(), |_| home.engine_name()) else {
        return;
    };
    check_cache(home, report);
    check_formats(home, report);
    check_listeners(home, report);
    check_jobs(home, &*store, report);
    check_gates(home, report);
    check_ticks(home, report);
}

fn check_surroundings(home: &Home, report: &mut Report) {
    for (about, dir) in [("state_dir", &home.layout.state), ("cache.dir", &home.layout.cache)] {
        let Some(kind) = bind::network_of(dir) else {
            continue;
        };
        let grade = if about == "state_dir" { Grade::Fail(Exit::Config) } else { Grade::Warn };
        report.add(
            grade,
            about,
            format!("{} is on {kind}: SQLite and its queue belong on a local disk", dir.display()),
        );
    }
    let cache_bytes = home.layout.cache.as_os_str().len();
    if cache_bytes > LONGEST_CACHE {
        let message = format!(
            "its path has {cache_bytes} bytes: beyond {LONGEST_CACHE} Chromium cannot make its socket in TMPDIR"
        );
        report.add(Grade::Warn, "cache.dir", message);
    }
    for dir in [&home.layout.state, &home.layout.cache] {
        if ["/tmp", "/var/tmp", "/dev/shm", "/run"].iter().any(|volatile| dir.starts_with(volatile)) {
            report.add(
                Grade::Warn,
                "directories",
                format!("{} lies where systems clean up by themselves", dir.display()),
            );
        }
    }
    if let Ok(meta) = fs::metadata(&home.layout.state) {
        let (mode, gid) = (meta.mode() & 0o7777, meta.gid());
        if mode & 0o007 != 0 {
            report.add(
                Grade::Warn,
                "state_dir",
                format!("mode {mode:o} lets everybody in: chmod 3770 {}", home.layout.state.display()),
            );
        } else if mode & 0o3070 != 0o3070 {
            let group = bind::group_name(gid);
            report.add(
                Grade::Warn,
                "state_dir",
                format!(
                    "mode {mode:o} does not fit front ends in group {group}: chmod 3770 {}",
                    home.layout.state.display()
                ),
            );
        }
    }
}

fn check_cache(home: &Home, report: &mut Report) {
    let try_rename = || -> Result<()> {
        let probe = home.layout.work().join("probe");
        fs::write(&probe, "probe")?;
        let target = home.layout.cache.join(".probe");
        fs::rename(&probe, &target)?;
        Ok(fs::remove_file(&target)?)
    };
    report.result("cache", try_rename(), |()| home.layout.cache.display().to_string());
    let try_lock = || -> Result<()> {
        match lock::try_take(&home.layout.cache_lock())
            .map_err(|error| bind::unusable(&home.layout.cache_lock(), &error))?
        {
            Some(held) => Ok(held.release()?),
            None => Ok(()),
        }
    };
    report.result("lock", try_lock(), |()| home.layout.cache_lock().display().to_string());
}

fn check_formats(home: &Home, report: &mut Report) {
    if home.config.format.is_empty() {
        report.add(Grade::Warn, "formats", "none is configured: nothing can be exported");
    }
    for (name, format) in &home.config.format {
        let missing = exporter::missing(format);
        if !missing.is_empty() {
            let path = exporter::search_path().to_string_lossy().into_owned();
            let message = format!("{name}: {} is not installed (looked in {path})", missing.join(", "));
            report.add(Grade::Fail(Exit::ExporterMissing), "format", message);
            continue;
        }
        report.add(Grade::Ok, "format", format!("{name}: {}", format.command.first().map_or("", String::as_str)));
        let walls = confine::names(&home.config.format_limits(name));
        match confine::obstacle(&home.config.format_limits(name)) {
            None if walls.is_empty() => {}
            None => report.add(Grade::Ok, "confinement", format!("{name}: {} in force", walls.join(" and "))),
            Some((exit, why)) => report.add(Grade::Fail(exit), "confinement", format!("{name}: {why}")),
        }
        if let Some(file) = &format.env_file {
            report.result("env_file", exporter::read_env_file(file), |_| file.display().to_string());
        }
    }
}

fn check_listeners(home: &Home, report: &mut Report) {
    let path = exporter::search_path();
    for (name, notify) in home.config.listeners() {
        let program = notify.command.first().map_or("", String::as_str);
        match exporter::find(program, &path) {
            Some(_) => report.add(Grade::Ok, "notify", format!("{name}: {program}")),
            None => report.add(
                Grade::Warn,
                "notify",
                format!(
                    "{name}: {program} is not installed: what it is to be told is kept, see `export-queue deliveries`"
                ),
            ),
        }
    }
}

/// Jobs of queues and formats that the configuration does not know any more.
fn check_jobs(home: &Home, store: &dyn Store, report: &mut Report) {
    let Some(jobs) = report.result("jobs", store.list(&Filter::default()), |jobs| format!("{} rows", jobs.len()))
    else {
        return;
    };
    let orphans = jobs
        .iter()
        .filter(|job| !home.config.queue.contains_key(&job.queue) || !home.config.format.contains_key(&job.key.format));
    let count = orphans.count();
    if count > 0 {
        report.add(
            Grade::Warn,
            "jobs",
            format!("{count} jobs are of a queue or format that is not configured: see `export-queue list`"),
        );
    }
}

fn check_gates(home: &Home, report: &mut Report) {
    for (name, queue) in &home.config.queue {
        if let Some(gate) = gates::closed(queue, &home.layout.cache) {
            report.add(Grade::Warn, "queue", format!("{name} starts nothing now: {gate}"));
        }
    }
}

fn check_ticks(home: &Home, report: &mut Report) {
    let undispatched = request::is_undispatched(home, clock::now());
    match (dispatch::last_tick(&home.layout.tick()), undispatched) {
        (Ok(None), _) => report.add(
            Grade::Warn,
            "dispatch",
            "nobody has dispatched yet: put `* * * * * export-queue dispatch --for 60s` into the owner's crontab",
        ),
        (Ok(Some(last)), Ok(false)) => report.add(Grade::Ok, "dispatch", format!("last at {}", last.format("%Y-%m-%dT%H:%M:%SZ"))),
        _ => report.add(
            Grade::Warn,
            "dispatch",
            "nobody has dispatched for two minutes: put `* * * * * export-queue dispatch --for 60s` into the owner's crontab",
        ),
    }
}
