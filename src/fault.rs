//! Named moments at which a test can make this program die, fail or wait; nothing of them is in a release build.
//!
//! `EXPORT_QUEUE_FAULT="publish.after_rename=abort"` ends the process there as `kill -9` would; `=delay:1500` waits that many
//! milliseconds, `=error` is an I/O error, `=full` the error of a full disk; several are joined by `;`. A moment is named
//! `room.moment`. Each that does something adds its name to the file that `EXPORT_QUEUE_FAULT_HITS` names, so that a test
//! knows that it was reached.

/// Every moment there is, in the order in which an export passes them.
pub const MOMENTS: &[&str] = &[
    "setup.before_database",
    "setup.before_id",
    "setup.before_marker",
    "request.before_commit",
    "request.after_commit",
    "dispatch.before_spawn",
    "dispatch.after_spawn",
    "dispatch.before_touch",
    "recover.before_kill",
    "recover.before_settle",
    "recover.after_settle",
    "work.before_record",
    "work.before_claim",
    "work.after_claim",
    "work.after_mkdir",
    "work.before_spawn",
    "work.after_spawn",
    "work.after_exit",
    "work.before_check",
    "base.before_copy",
    "base.after_request",
    "publish.before_sync",
    "publish.after_sync",
    "publish.before_lock",
    "publish.before_rename",
    "publish.after_rename",
    "publish.after_dir_sync",
    "finish.before_commit",
    "finish.after_commit",
    "clean.before_remove",
    "clean.after_remove",
    "errand.before_spawn",
    "errand.after_exit",
    "tidy.before_forget",
    "sweep.before_lock",
    "sweep.before_unlink",
    "sweep.aside",
    "sweep.after_unlink",
    "sweep.before_commit",
    "migrate.before_close",
    "migrate.after_close",
    "migrate.between_rows",
    "migrate.before_arrival",
    "migrate.after_arrival",
    "migrate.after_leaving",
    "migrate.after_opening",
];

/// Passes the moment `name`; a debug build does there what `EXPORT_QUEUE_FAULT` asks for.
///
/// # Errors
/// Only those that the variable asks for.
#[cfg(debug_assertions)]
pub fn point(name: &str) -> std::io::Result<()> {
    debug_assert!(MOMENTS.contains(&name), "{name} is not in the list of moments");
    let Ok(faults) = std::env::var("EXPORT_QUEUE_FAULT") else {
        return Ok(());
    };
    let mut wanted = faults.split(';').filter_map(|fault| fault.split_once('='));
    let Some((_, way)) = wanted.find(|(moment, _)| *moment == name) else {
        return Ok(());
    };
    note_hit(name)?;
    match way {
        "abort" => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            Ok(())
        }
        "error" => Err(std::io::Error::other(format!("asked to fail at {name}"))),
        "full" => Err(rustix::io::Errno::NOSPC.into()),
        way => {
            let millis = way.strip_prefix("delay:").and_then(|millis| millis.parse().ok()).unwrap_or(0);
            std::thread::sleep(std::time::Duration::from_millis(millis));
            Ok(())
        }
    }
}

#[cfg(debug_assertions)]
fn note_hit(name: &str) -> std::io::Result<()> {
    use std::io::Write;
    let Some(path) = std::env::var_os("EXPORT_QUEUE_FAULT_HITS") else {
        return Ok(());
    };
    writeln!(std::fs::OpenOptions::new().create(true).append(true).open(path)?, "{name}")
}

/// Passes the moment `name`.
///
/// # Errors
/// None in a release build.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_name: &str) -> std::io::Result<()> {
    Ok(())
}
