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
            token: token.to_owned(),
            progress: home.layout.work_of(token).join("progress"),
            lease,
            next_renewal: claimed + lease / 6,
            last: String::new(),
        };
        let (home, its) = (home.clone(), Arc::clone(&seen));
        let keep = move || {
            // A connection of its own: the run's is busy elsewhere.
            let mut store = None;
            while over.recv_timeout(LOOK.min(lease / 12)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let looked = opened(&home, &mut store, lease).and_then(|store| kept.look(store, &its));
                if let Err(error) = looked {
                    tracing::debug!("cannot keep run {} for now: {error:#}", kept.token);
                }
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

/// The connection, made anew where the last try failed.
fn opened<'s>(home: &Home, store: &'s mut Option<Box<dyn Store>>, lease: Duration) -> Result<&'s mut dyn Store> {
    Ok(match store {
        Some(store) => &mut **store,
        None => &mut **store.insert(home.open_with(patience(lease))?),
    })
}

/// What hangs is given up while there is time for further tries.
fn patience(lease: Duration) -> Patience {
    Patience { each: lease / 6, in_all: None, insists: false }
}

impl Kept {
    fn look(&mut self, store: &mut dyn Store, seen: &Seen) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tempfile::TempDir;

    use super::*;
    use crate::key::Key;
    use crate::store::sqlite::Sqlite;
    use crate::store::{Ask, Claim, QueueBounds};

    const LEASE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    /// A queue whose one job is claimed by the run `t`.
    fn claimed() -> (TempDir, Sqlite) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("queue.db");
        std::fs::write(&path, "").expect("an empty file");
        let mut store = Sqlite::open(&path, "the id").expect("a queue");
        let word = || "x".to_owned();
        let key = Key { title: word(), lang: word(), font: word(), format: word(), options: BTreeMap::new() };
        let ask = Ask {
            key,
            filename: "x".into(),
            base_filename: None,
            queue: "default".into(),
            client: None,
            meta: None,
            pages: None,
            priority: 10,
            rank: None,
            not_before: None,
            wait_until: None,
            refresh: false,
            retry: false,
            hold: Duration::ZERO,
            bounds: QueueBounds::default(),
        };
        store.request(&ask, clock::now()).expect("a request");
        let claim = Claim {
            queue: "default".into(),
            formats: vec![("x".into(), HOUR)],
            token: "t".into(),
            node: "node".into(),
            slot: "default.0".into(),
            worker: "7.8".into(),
            max_running: 0,
            lease: LEASE,
        };
        store.claim(&claim, clock::now()).expect("a claim").expect("a job");
        (dir, store)
    }

    fn kept(token: &str, next_renewal: Duration) -> Kept {
        let (token, progress) = (token.to_owned(), PathBuf::from("/dev/null"));
        Kept { token, progress, lease: LEASE, next_renewal, last: String::new() }
    }

    /// One look, and what was seen: cancelled, lost, until when.
    fn look(kept: &mut Kept, store: &mut Sqlite) -> (bool, bool, u64) {
        let seen =
            Seen { is_cancelled: AtomicBool::new(false), is_lost: AtomicBool::new(false), until: AtomicU64::new(0) };
        kept.look(store, &seen).expect("a look");
        let Seen { is_cancelled, is_lost, until } = seen;
        (is_cancelled.into_inner(), is_lost.into_inner(), until.into_inner())
    }

    #[test]
    fn a_lease_is_renewed_when_it_is_time_and_for_two_thirds_of_it() {
        let (_dir, mut store) = claimed();
        let before = clock::since_boot();
        let mut early = kept("t", before + HOUR);
        assert_eq!(look(&mut early, &mut store), (false, false, 0));
        assert_eq!(early.next_renewal, before + HOUR);
        let mut due = kept("t", before);
        let (is_cancelled, is_lost, until) = look(&mut due, &mut store);
        let after = clock::since_boot();
        assert!(!is_cancelled && !is_lost);
        assert!((millis(before + LEASE * 2 / 3)..=millis(after + LEASE * 2 / 3)).contains(&until), "{until}");
        let next = due.next_renewal;
        assert!((before + LEASE / 6..=after + LEASE / 6).contains(&next), "{next:?}");
    }

    #[test]
    fn a_renewal_that_hangs_leaves_time_for_others() {
        assert!(patience(LEASE).each * 3 <= LEASE * 2 / 3);
    }

    #[test]
    fn a_mark_and_a_loss_are_seen_with_and_without_a_renewal() {
        let (_dir, mut store) = claimed();
        store.cancel("x", None, true, clock::now()).expect("a cancel");
        for next_renewal in [Duration::ZERO, clock::since_boot() + HOUR] {
            let (is_cancelled, is_lost, _) = look(&mut kept("t", next_renewal), &mut store);
            assert!(is_cancelled && !is_lost);
            assert_eq!(look(&mut kept("another", next_renewal), &mut store), (false, true, 0));
        }
    }

    #[test]
    fn progress_is_written_when_it_is_new() {
        let (dir, mut store) = claimed();
        let progress = dir.path().join("progress");
        let mut last = String::new();
        for (line, written) in [("", "mark"), ("0.5", "0.5"), ("0.5", "mark"), ("0.6", "0.6"), ("", "mark")] {
            store.progress("t", "mark").expect("a mark");
            std::fs::write(&progress, line).expect("a line");
            assert_eq!(look_at_row(&mut store, "t", &progress, &mut last), Mark::None);
            let job = store.find_by_token("t").expect("a look").expect("a job");
            let crate::job::Phase::Started { progress, .. } = job.phase else { panic!("{:?}", job.phase) };
            assert_eq!(progress.as_deref(), Some(written), "after {line:?}");
        }
    }
}
