//! Keeping a job while its exporter runs: progress goes into its row, a cancel mark and a lost token come out of it.
//!
//! Where machines share the queue, the run has its job only for the time of a lease. A thread of its own renews that and
//! looks at the row, so that the watch never waits for the database, however that fares. Two thirds of a lease after the last
//! renewal that succeeded was *sent*, by the clock that also counts while a machine sleeps, the exporter is to be ended: the
//! last third is the time for that, and then others may begin.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::watch::Mark;
use crate::bind::Home;
use crate::clock;
use crate::exporter;
use crate::store::{Hold, Patience, Store};

/// How often the thread looks at the row.
const LOOK: Duration = Duration::from_secs(1);

/// Renews a run's lease until it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    seen: Arc<Seen>,
    /// Its end tells the thread to end.
    _over: mpsc::Sender<()>,
}

/// What the thread has seen.
#[derive(Debug)]
struct Seen {
    is_cancelled: AtomicBool,
    is_lost: AtomicBool,
    /// When the exporter is to be ended: milliseconds since boot.
    until: AtomicU64,
}

struct Kept {
    home: Home,
    token: String,
    progress: PathBuf,
    lease: Duration,
    next_renewal: Duration,
    last: String,
}

impl Keeper {
    /// Keeps the run `token`, claimed by a statement that was sent at `claimed` (time since boot).
    ///
    /// # Errors
    /// No thread is to be had.
    pub(super) fn start(home: &Home, token: &str, claimed: Duration) -> Result<Self> {
        let lease = home.config.node.lease.0;
        let seen = Arc::new(Seen {
            is_cancelled: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            until: AtomicU64::new(fence(claimed, lease)),
        });
        let (sender, over) = mpsc::channel();
        let mut kept = Kept {
            home: home.clone(),
            token: token.to_owned(),
            progress: home.layout.work_of(token).join("progress"),
            lease,
            next_renewal: claimed + lease / 6,
            last: String::new(),
        };
        let its = Arc::clone(&seen);
        let keep = move || {
            // A connection of its own: the run's is busy elsewhere.
            let mut store = None;
            while over.recv_timeout(LOOK.min(kept.lease / 12)) == Err(mpsc::RecvTimeoutError::Timeout) {
                kept.look(&mut store, &its);
            }
        };
        thread::Builder::new()
            .name("lease".to_owned())
            .spawn(keep)
            .context("starting the thread that keeps the lease")?;
        Ok(Self { seen, _over: sender })
    }

    /// What the watch is to do.
    pub(super) fn mark(&self) -> Mark {
        if self.seen.is_lost.load(Ordering::Relaxed) {
            Mark::Lost
        } else if millis(clock::since_boot()) >= self.seen.until.load(Ordering::Relaxed) {
            Mark::Fenced
        } else if self.seen.is_cancelled.load(Ordering::Relaxed) {
            Mark::Cancelled
        } else {
            Mark::None
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn fence(sent: Duration, lease: Duration) -> u64 {
    millis(sent + lease * 2 / 3)
}

impl Kept {
    fn look(&mut self, store: &mut Option<Box<dyn Store>>, seen: &Seen) {
        if let Err(error) = self.try_look(store, seen) {
            tracing::debug!("cannot keep run {} for now: {error:#}", self.token);
        }
    }

    fn try_look(&mut self, store: &mut Option<Box<dyn Store>>, seen: &Seen) -> Result<()> {
        if store.is_none() {
            let each = self.lease / 6;
            *store = Some(self.home.open_with(Patience { each, in_all: None, insists: false })?);
        }
        let Some(store) = store.as_deref_mut() else { return Ok(()) };
        let sent = clock::since_boot();
        if sent < self.next_renewal {
            note(look_at_row(store, &self.token, &self.progress, &mut self.last), seen);
            return Ok(());
        }
        let hold = store.renew(&self.token, self.lease)?;
        if hold != Hold::Lost {
            seen.until.store(fence(sent, self.lease), Ordering::Relaxed);
            self.next_renewal = sent + self.lease / 6;
        }
        let mark = match hold {
            Hold::Mine => Mark::None,
            Hold::Cancelled => Mark::Cancelled,
            Hold::Lost => Mark::Lost,
        };
        note(mark, seen);
        Ok(())
    }
}

fn note(mark: Mark, seen: &Seen) {
    match mark {
        Mark::None | Mark::Fenced => {}
        Mark::Cancelled => seen.is_cancelled.store(true, Ordering::Relaxed),
        Mark::Lost => seen.is_lost.store(true, Ordering::Relaxed),
    }
}

/// Notes progress that is new, and says what the row says.
pub(super) fn look_at_row(store: &mut dyn Store, token: &str, progress: &Path, last: &mut String) -> Mark {
    let line = exporter::last_progress(progress);
    if !line.is_empty() && line != *last {
        if let Err(error) = store.progress(token, &line) {
            tracing::debug!("cannot note progress: {error:#}");
        }
        *last = line;
    }
    match store.find_by_token(token) {
        Ok(Some(job)) if job.cancel_at.is_some() => Mark::Cancelled,
        Ok(Some(_)) => Mark::None,
        Ok(None) => Mark::Lost,
        Err(error) => {
            tracing::debug!("cannot look at the row: {error:#}");
            Mark::None
        }
    }
}
