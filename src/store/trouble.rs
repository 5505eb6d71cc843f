//! What an SQLite error means for the caller: an exit code, and words that name the file and the mend.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::exit::{Exit, Refusal};

/// Gives an SQLite error the exit code and the words that it deserves; other errors stay as they are.
pub(super) fn explain(path: &Path, error: anyhow::Error) -> anyhow::Error {
    let at = path.display();
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return Refusal::with(refusal.exit, format!("{at}: {}", refusal.message));
    }
    let Some(sqlite) = error.chain().find_map(|cause| cause.downcast_ref::<rusqlite::Error>()) else {
        return error;
    };
    let Some(code) = sqlite.sqlite_error_code() else {
        return error.context(format!("using {at}"));
    };
    let (exit, words) = match code {
        ErrorCode::ConstraintViolation if is_moving(sqlite) => {
            (Exit::TryLater, "the queue moves to another database, or has moved; try again later")
        }
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            (Exit::TryLater, "the database is busy; try again later")
        }
        ErrorCode::DiskFull => (Exit::TryLater, "the disk is full"),
        ErrorCode::SystemIoFailure => (Exit::TryLater, "the disk does not answer as it should"),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
            (Exit::Config, "is not a usable database; recover with `export-queue init --adopt` (files stay served)")
        }
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            (Exit::NotPermitted, "may not be written by this user: join the group of the state directory")
        }
        ErrorCode::CannotOpen if is_forbidden(path) => {
            (Exit::NotPermitted, "cannot be opened: is this user in the group of the state directory?")
        }
        ErrorCode::CannotOpen => (Exit::TryLater, "cannot be opened now"),
        _ => return error.context(format!("using {at}")),
    };
    Refusal::with(exit, format!("{at}: {words} ({sqlite})"))
}

/// A trigger refused the write: only a queue that moves has any.
fn is_moving(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER)
}

/// The error for a database that is empty although the queue was set up.
pub(super) fn lost(path: &Path) -> anyhow::Error {
    let path = path.display();
    Refusal::config(format!("{path} is not a usable database: it is empty; recover with `export-queue init --adopt`"))
}

fn is_forbidden(path: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(path);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::exit_of;

    fn explained(path: &Path, code: std::ffi::c_int) -> Exit {
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        exit_of(&explain(path, error.into()))
    }

    #[test]
    fn each_trouble_has_its_exit_code() {
        use rusqlite::ffi;
        for (code, exit) in [
            (ffi::SQLITE_BUSY, Exit::TryLater),
            (ffi::SQLITE_LOCKED, Exit::TryLater),
            (ffi::SQLITE_FULL, Exit::TryLater),
            (ffi::SQLITE_IOERR, Exit::TryLater),
            (ffi::SQLITE_CORRUPT, Exit::Config),
            (ffi::SQLITE_NOTADB, Exit::Config),
            (ffi::SQLITE_READONLY, Exit::NotPermitted),
            (ffi::SQLITE_PERM, Exit::NotPermitted),
            (ffi::SQLITE_RANGE, Exit::Unexpected),
        ] {
            assert_eq!(explained(Path::new("x"), code), exit, "{code}");
        }
    }

    #[test]
    fn only_a_trigger_says_that_the_queue_moves() {
        use rusqlite::ffi::{SQLITE_CONSTRAINT_CHECK, SQLITE_CONSTRAINT_TRIGGER};
        assert_eq!(explained(Path::new("x"), SQLITE_CONSTRAINT_TRIGGER), Exit::TryLater);
        assert_eq!(explained(Path::new("x"), SQLITE_CONSTRAINT_CHECK), Exit::Unexpected);
    }

    #[test]
    fn a_file_that_may_be_opened_and_cannot_be_now_means_later() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/no/such/file")] {
            assert_eq!(explained(path, rusqlite::ffi::SQLITE_CANTOPEN), Exit::TryLater, "{}", path.display());
        }
    }
}
