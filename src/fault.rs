//! Named moments at which a test can make this program die, fail or wait; nothing of them is in a release build.
//!
//! `EXPORT_QUEUE_FAULT="publish.after_rename=abort"` aborts there; `=delay:1500` waits that many milliseconds, `=error` is
//! an I/O error, `=full` the error of a full disk; several are joined by `;`. A moment is named `room.moment`.

/// Every moment there is, in the order in which an export passes them.
pub const MOMENTS: &[&str] = &[
    "request.before_commit",
    "request.after_commit",
    "dispatch.before_spawn",
    "recover.before_settle",
    "work.before_claim",
    "work.after_claim",
    "work.after_spawn",
    "work.after_exit",
    "publish.before_sync",
    "publish.before_rename",
    "publish.after_rename",
    "finish.before_commit",
    "finish.after_commit",
    "sweep.before_unlink",
    "sweep.after_unlink",
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
    let wanted = faults.split(';').filter_map(|fault| fault.split_once('=')).find(|(moment, _)| *moment == name);
    match wanted.map(|(_, way)| way) {
        None => Ok(()),
        Some("abort") => std::process::abort(),
        Some("error") => Err(std::io::Error::other(format!("asked to fail at {name}"))),
        Some("full") => Err(rustix::io::Errno::NOSPC.into()),
        Some(way) => {
            let millis = way.strip_prefix("delay:").and_then(|millis| millis.parse().ok()).unwrap_or(0);
            std::thread::sleep(std::time::Duration::from_millis(millis));
            Ok(())
        }
    }
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
