//! Watching one exporter: its time, memory, processor time, processes, output and log; a cancel mark; the loss of its
//! token; and the worker's own stop flag. Whatever happens, the tree is ended before this returns.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::WorkDir;
use crate::clock;
use crate::config::Limits;
use crate::exporter;
use crate::job::Measured;
use crate::process::{self, Ended, Stat, Tree, Woken};
use crate::recover::KILL_PATIENCE;
use crate::stop::Stop;

/// The longest pause between two looks.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The first pause: most failures come at once, and looking costs.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// The pause while a log grows quickly.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Why the watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The exporter ended by itself.
    Ended(Ended),
    /// Its time was up.
    TimedOut,
    /// Its tree used more memory than it may.
    OutOfMemory,
    /// Its tree used more processor time than it may.
    CpuExhausted,
    /// Its tree had more processes than it may.
    TooManyProcesses,
    /// It wrote more than it may.
    OutputTooLarge,
    /// Somebody asked to end the job.
    Cancelled,
    /// This worker was told to stop.
    Stopped,
    /// The row does not carry this run's token any more.
    Lost,
    /// It could not be renewed that the job is this run's.
    Fenced,
}

/// What the row of the job says meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Go on.
    None,
    /// It was cancelled.
    Cancelled,
    /// It is not this run's any more.
    Lost,
    /// It may be somebody else's soon: the exporter is to be ended before.
    Fenced,
}

/// What a watch came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    /// Why it ended.
    pub(crate) verdict: Verdict,
    /// Memory and processor time.
    pub(crate) measured: Measured,
    /// The tree had to be killed because it did not end within the grace.
    pub(crate) was_deaf: bool,
    /// Something of the tree is still there.
    pub(crate) is_undead: bool,
}

/// What is watched, and against which limits.
pub(crate) struct Watch<'a> {
    /// The limits in force.
    pub(crate) limits: &'a Limits,
    /// The exporter's log, open for cutting.
    pub(crate) log: &'a mut File,
    /// Its private directory.
    pub(crate) work: &'a WorkDir,
    /// The worker's stop flag.
    pub(crate) stop: &'a Stop,
    /// Looks at the row and writes progress, at most twice a second.
    pub(crate) mark: &'a mut dyn FnMut() -> Mark,
}

impl Watch<'_> {
    /// Watches until the exporter ends or has to be ended, then ends what is left of its tree.
    ///
    /// # Errors
    /// The kernel refuses to say how it is; the tree is then left to `recover`.
    pub(crate) fn run(mut self, tree: &mut Tree) -> Result<Watched> {
        let deadline = clock::monotonic() + self.limits.timeout.0;
        let mut measured = Measured::default();
        let verdict = self.until_verdict(tree, deadline, &mut measured)?;
        let was_deaf = match verdict {
            Verdict::Ended(_) => false,
            _ => !self.ask_to_end(tree)?,
        };
        let is_undead = !tree.end(KILL_PATIENCE).context("ending the exporter's tree")?;
        exporter::cut_log(self.log, self.limits.max_log.0).context("cutting the log")?;
        match verdict {
            Verdict::Ended(Ended::Code(code)) => measured.exit_code = Some(code),
            Verdict::Ended(Ended::Signal(signal)) => measured.signal = Some(signal),
            _ => {}
        }
        Ok(Watched { verdict, measured, was_deaf, is_undead })
    }

    fn until_verdict(&mut self, tree: &mut Tree, deadline: Duration, measured: &mut Measured) -> Result<Verdict> {
        let mut look = FIRST_LOOK;
        let mut log_bytes = 0;
        let mut next_mark = clock::monotonic() + LONGEST_LOOK;
        loop {
            let left = deadline.saturating_sub(clock::monotonic());
            let woken = tree.wait(self.stop.as_fd(), look.min(left)).context("waiting for the exporter")?;
            match woken {
                Woken::Ended(ended) => return Ok(Verdict::Ended(ended)),
                Woken::Called => return Ok(Verdict::Stopped),
                Woken::Time => {}
            }
            if clock::monotonic() >= deadline {
                return Ok(Verdict::TimedOut);
            }
            let max_log = self.limits.max_log.0;
            let bytes = exporter::cut_log(self.log, max_log).context("cutting the log")?;
            look = next_look(look, max_log, log_bytes, bytes);
            log_bytes = bytes;
            if let Some(verdict) = self.over_limits(measured) {
                return Ok(verdict);
            }
            if clock::monotonic() >= next_mark {
                next_mark = clock::monotonic() + LONGEST_LOOK;
                match (self.mark)() {
                    Mark::None => {}
                    Mark::Cancelled => return Ok(Verdict::Cancelled),
                    Mark::Lost => return Ok(Verdict::Lost),
                    Mark::Fenced => return Ok(Verdict::Fenced),
                }
            }
        }
    }

    fn over_limits(&self, measured: &mut Measured) -> Option<Verdict> {
        let tree = process::descendants(process::myself().pid);
        let memory: u64 = tree.iter().map(|process| process::memory(process.identity.pid)).sum();
        measured.peak_memory = measured.peak_memory.max(Some(memory));
        let cpu = cpu_millis(&tree);
        measured.cpu_millis = measured.cpu_millis.max(Some(cpu));
        let limits = self.limits;
        let exceeds = |value: u64, limit: u64| limit > 0 && value > limit;
        let max_cpu = u64::try_from(limits.max_cpu.0.as_millis()).unwrap_or(u64::MAX);
        if exceeds(memory, limits.max_memory.0) {
            Some(Verdict::OutOfMemory)
        } else if exceeds(cpu, max_cpu) {
            Some(Verdict::CpuExhausted)
        } else if exceeds(tree.len() as u64, u64::from(limits.max_processes)) {
            Some(Verdict::TooManyProcesses)
        } else if exceeds(self.work.bytes(), limits.max_output.0) {
            Some(Verdict::OutputTooLarge)
        } else {
            None
        }
    }

    /// TERM to the group, then the grace; a further signal to this worker cuts it short. True when all ended in time.
    fn ask_to_end(&self, tree: &mut Tree) -> Result<bool> {
        tree.terminate();
        let asked_before = self.stop.count();
        let until = clock::monotonic() + self.limits.kill_grace.0;
        loop {
            if !tree.reap().context("waiting for the exporter's tree")? {
                return Ok(true);
            }
            let left = until.saturating_sub(clock::monotonic());
            if left.is_zero() || self.stop.count() > asked_before {
                return Ok(false);
            }
            if tree.ended().is_some() {
                // The leader is gone; what it left behind was asked too and has no claim to the whole grace.
                return Ok(true);
            }
            tree.wait(self.stop.as_fd(), left.min(Duration::from_millis(20)))?;
        }
    }
}

/// The pause after one of `look` in which a log grew from `before` to `bytes`.
fn next_look(look: Duration, max_log: u64, before: u64, bytes: u64) -> Duration {
    let is_flood = max_log > 0 && bytes > max_log / 2 && bytes > before;
    if is_flood { SHORTEST_LOOK } else { (look * 2).min(LONGEST_LOOK) }
}

fn cpu_millis(tree: &[Stat]) -> u64 {
    let ticks: u64 = tree.iter().map(|process| process.cpu_ticks).sum();
    ticks * 1000 / process::ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_all_processes_in_milliseconds() {
        let second = process::ticks_per_second();
        let of = |cpu_ticks| Stat { cpu_ticks, ..process::stat(process::myself().pid).expect("this process") };
        assert_eq!(cpu_millis(&[of(second), of(second / 2)]), 1500);
        assert_eq!(cpu_millis(&[]), 0);
    }

    #[test]
    fn looks_become_rare_but_for_a_log_that_is_flooded() {
        let millis = Duration::from_millis;
        for (look, max_log, before, bytes, expected) in [
            (FIRST_LOOK, 100, 0, 0, millis(100)),
            (millis(400), 100, 0, 50, LONGEST_LOOK),
            (LONGEST_LOOK, 100, 50, 51, SHORTEST_LOOK),
            (SHORTEST_LOOK, 100, 51, 51, SHORTEST_LOOK * 2),
            // It was cut.
            (SHORTEST_LOOK, 100, 99, 60, SHORTEST_LOOK * 2),
            // Without a limit nothing is cut.
            (LONGEST_LOOK, 0, 1, 1000, LONGEST_LOOK),
        ] {
            assert_eq!(next_look(look, max_log, before, bytes), expected, "{max_log} {before} {bytes}");
        }
    }
}
