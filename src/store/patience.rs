//! How long one waits for a database on another machine.

use std::time::Duration;

/// How long a caller waits for a database on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For one transaction, with all its tries.
    pub each: Duration,
    /// For everything that is asked through one connection, from its opening on.
    pub in_all: Option<Duration>,
    /// Whether a server that refuses connections is tried again: it may only be restarting.
    pub insists: bool,
}

impl Patience {
    /// Of ticks and workers.
    pub const OWNER: Self = Self { each: Duration::from_secs(10), in_all: None, insists: true };

    /// Of an operator who moves a whole queue.
    pub const MOVER: Self = Self { each: Duration::from_secs(3600), in_all: None, insists: false };

    /// Of a front end, which is told "later" within three seconds.
    pub const ASKER: Self =
        Self { each: Duration::from_millis(2500), in_all: Some(Duration::from_millis(2500)), insists: false };

    /// Of a front end that brings thousands of jobs at once.
    pub const BATCH: Self = Self { each: Duration::from_secs(60), in_all: None, insists: false };

    /// Of a caller who has its answer already and would like to add to it.
    pub const HASTY: Self =
        Self { each: Duration::from_millis(300), in_all: Some(Duration::from_millis(300)), insists: false };
}
