//! The exit codes, each once, and the error that carries one.
//!
//! Front ends lean on these numbers. A flow that knows how its error must end the program wraps it in [`Refusal`]; a
//! machine that is short of something may have it later; everything else ends with [`Exit::Unexpected`].

use std::fmt;
use std::io;

/// How the program ends; the numbers follow `sysexits.h` where it has a fitting one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Done; for `status` and `request`: the file is ready.
    Done,
    /// Something that nobody foresaw.
    Unexpected,
    /// The call itself is wrong; nothing was stored.
    Usage,
    /// The answer is `queued`.
    Queued,
    /// The answer is `started`.
    Started,
    /// The answer is `failed_timeout` or `failed_unknown`.
    Failed,
    /// The answer is `absent`.
    Absent,
    /// An exporter is not installed (`EX_UNAVAILABLE`).
    ExporterMissing,
    /// Try again later (`EX_TEMPFAIL`).
    TryLater,
    /// Not permitted (`EX_NOPERM`).
    NotPermitted,
    /// Configuration or surroundings are wrong (`EX_CONFIG`).
    Config,
}

impl Exit {
    /// The number given to the operating system, 0 to 78.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::Queued => 3,
            Self::Started => 4,
            Self::Failed => 5,
            Self::Absent => 6,
            Self::ExporterMissing => 69,
            Self::TryLater => 75,
            Self::NotPermitted => 77,
            Self::Config => 78,
        }
    }

    /// Whether this is an answer about a file and not an error.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Queued | Self::Started | Self::Failed | Self::Absent)
    }

    /// The graver of two endings of a tick: a wrong setup before a missing exporter before "try later".
    #[must_use]
    pub fn graver(self, other: Self) -> Self {
        let weight = |exit: Self| match exit {
            Self::Config => 6,
            Self::NotPermitted => 5,
            Self::Unexpected => 4,
            Self::ExporterMissing => 3,
            Self::TryLater => 2,
            Self::Usage => 1,
            Self::Done | Self::Queued | Self::Started | Self::Failed | Self::Absent => 0,
        };
        if weight(other) > weight(self) { other } else { self }
    }

    /// The ending with that number, for reading how a worker of ours ended.
    pub fn from_code(code: i32) -> Self {
        match code {
            0 => Self::Done,
            2 => Self::Usage,
            69 => Self::ExporterMissing,
            75 => Self::TryLater,
            77 => Self::NotPermitted,
            78 => Self::Config,
            _ => Self::Unexpected,
        }
    }
}

/// An error that knows which exit code it deserves.
#[derive(Debug)]
pub struct Refusal {
    /// How the program shall end.
    pub exit: Exit,
    /// What to tell the person: one line that names the thing and the mend.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Makes the error for a call that is wrong (exit 2).
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::Usage, message)
    }

    /// Makes the error for a configuration or surroundings that are wrong (exit 78).
    pub fn config(message: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::Config, message)
    }

    /// Makes the error for something that this user may not do (exit 77).
    pub fn not_permitted(message: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::NotPermitted, message)
    }

    /// Makes the error for something that may work later (exit 75).
    pub fn try_later(message: impl Into<String>) -> anyhow::Error {
        Self::with(Exit::TryLater, message)
    }

    /// Makes an error that ends the program with `exit`.
    pub fn with(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        Self { exit, message: message.into() }.into()
    }
}

/// The exit code that an error deserves: the innermost [`Refusal`]'s, else whether the machine ran short of something, else
/// [`Exit::Unexpected`].
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let errno = cause.downcast_ref::<rustix::io::Errno>().map(|errno| io::Error::from(*errno));
        let is_short = errno.as_ref().or_else(|| cause.downcast_ref::<io::Error>()).is_some_and(is_shortage);
        let refused = cause.downcast_ref::<Refusal>().map(|refusal| refusal.exit);
        refused.or(is_short.then_some(Exit::TryLater))
    };
    error.chain().find_map(of_cause).unwrap_or(Exit::Unexpected)
}

/// Whether this machine has run out of processes, memory, descriptors or room, for now.
pub fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    let is_descriptors =
        matches!(rustix::io::Errno::from_io_error(error), Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE));
    is_descriptors || matches!(error.kind(), FileTooLarge | OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_code_under_context() {
        let error = Refusal::try_later("the database is busy").context("asking for a book");
        assert_eq!(exit_of(&error), Exit::TryLater);
        assert_eq!(exit_of(&anyhow::anyhow!("else")), Exit::Unexpected);
    }

    #[test]
    fn a_machine_that_is_short_of_something_may_have_it_later() {
        let short = [rustix::io::Errno::AGAIN, rustix::io::Errno::MFILE, rustix::io::Errno::FBIG];
        for errno in short {
            assert_eq!(exit_of(&anyhow::Error::new(errno)), Exit::TryLater);
            assert_eq!(exit_of(&anyhow::Error::new(io::Error::from(errno)).context("starting")), Exit::TryLater);
        }
        assert_eq!(exit_of(&anyhow::Error::new(rustix::io::Errno::ACCESS)), Exit::Unexpected);
    }

    #[test]
    fn the_graver_finding_ends_a_tick() {
        assert_eq!(Exit::Done.graver(Exit::ExporterMissing), Exit::ExporterMissing);
        assert_eq!(Exit::Config.graver(Exit::TryLater), Exit::Config);
    }
}
