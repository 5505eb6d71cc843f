//! What a process is called so that no later one is taken for it.

use serde::{Deserialize, Serialize};

/// The command (hidden) by which this program puts walls up around itself and becomes an exporter. A process that was started
/// so is an exporter already, and none of the queue's own.
pub const STAGE: &str = "confine";

/// A process, told apart from later ones with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// Its start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.pid, self.start)
    }
}

impl std::str::FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (pid, start) = text.split_once('.')?;
            Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
        };
        parse().ok_or_else(|| format!("{text} is no pid.start"))
    }
}
