//! Which engine keeps the queue, and the clock that its machines share.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::sight::refuse_network;
use super::{Home, read_small};
use crate::clock;
use crate::exit::Refusal;
use crate::store::moving::{Mark, Movable};
use crate::store::sqlite::Sqlite;
use crate::store::{Patience, Store};

/// A change of the shared clock's offset that is worth writing down, in milliseconds.
const WORTH_NOTING: i64 = 20;

impl Home {
    /// Whether several machines may share the queue.
    pub fn is_shared(&self) -> bool {
        self.config.database.is_some()
    }

    /// Opens the queue, as its owner, once more in this process.
    ///
    /// # Errors
    /// As [`Self::open_as_owner`].
    pub fn open_with(&self, patience: Patience) -> Result<Box<dyn Store>> {
        self.open_bound(patience)
    }

    /// What may be told of where the queue is kept.
    pub fn engine_name(&self) -> String {
        self.name_of(self.config.database.as_deref())
    }

    /// What may be told of a database; `None` is SQLite.
    pub fn name_of(&self, database: Option<&str>) -> String {
        database.map_or_else(|| self.layout.database().display().to_string(), shared::name)
    }

    /// Opens a database out of which or into which the queue moves, closed or not.
    ///
    /// # Errors
    /// It is no usable database (78), or is away or busy (75).
    pub fn open_to_move(&self, database: Option<&str>) -> Result<Box<dyn Movable>> {
        if let Some(url) = database {
            return shared::open_to_move(url);
        }
        refuse_network(&self.layout.state)?;
        let path = self.layout.database();
        self.make_file(&path, 0o660)?;
        Ok(Box::new(Sqlite::open_to_move(&path)?))
    }

    /// Which schema the database in force holds, and how far a move is; `None` where it holds no queue.
    ///
    /// # Errors
    /// As [`Self::open_to_move`].
    pub fn schema(&self) -> Result<Option<(u32, Option<Mark>)>> {
        match &self.config.database {
            Some(url) => shared::schema(url),
            None if self.layout.database().exists() => Sqlite::schema(&self.layout.database()),
            None => Ok(None),
        }
    }

    /// Opens the database of a queue that was set up; `id` is what the state directory knows of it.
    pub(super) fn open_engine(&self, id: &str, patience: Patience) -> Result<Box<dyn Store>> {
        if let Some(url) = &self.config.database {
            return shared::open(url, patience);
        }
        let path = self.layout.database();
        self.refuse_lost(&path)?;
        Ok(Box::new(Sqlite::open(&path, id)?))
    }

    /// As [`Self::open_engine`], for reading only.
    pub(super) fn open_engine_to_read(&self, patience: Patience) -> Result<Box<dyn Store>> {
        if let Some(url) = &self.config.database {
            return shared::open(url, patience);
        }
        let path = self.layout.database();
        self.refuse_lost(&path)?;
        Ok(Box::new(Sqlite::open_to_read(&path)?))
    }

    /// Opens the database, and sets a queue with the id `new_id` up in it where there is none.
    pub(super) fn create_engine(&self, new_id: &str) -> Result<Box<dyn Store>> {
        if let Some(url) = &self.config.database {
            return shared::create(url, new_id);
        }
        let path = self.layout.database();
        self.make_file(&path, 0o660)?;
        Ok(Box::new(Sqlite::open(&path, new_id)?))
    }

    /// Pokes this machine's dispatcher for each job that is asked for on another, if `goes_on`: there is one that waits.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn listen(&self, goes_on: bool) -> Result<()> {
        let Some(url) = self.config.database.as_deref().filter(|_| goes_on) else {
            return Ok(());
        };
        let poke = self.layout.poke();
        let wake = move || {
            let poked = OpenOptions::new().write(true).open(&poke).and_then(|mut file| file.write_all(b"."));
            if let Err(error) = poked {
                tracing::debug!("cannot poke {}: {error}", poke.display());
            }
        };
        shared::listen(url, Arc::new(wake))
    }

    /// Goes by the clock of the database from now on, and notes for front ends how far this machine's is off.
    ///
    /// # Errors
    /// The database cannot be asked, or the note not be written.
    pub fn keep_time(&self, store: &dyn Store) -> Result<()> {
        let before = clock::local();
        let Some(shared) = store.time()? else {
            return Ok(());
        };
        let middle = before + (clock::local() - before) / 2;
        let offset = (shared - middle).num_milliseconds();
        clock::set_offset(offset);
        let note = self.layout.clock();
        if noted_offset(&note).is_none_or(|noted| (noted - offset).abs() >= WORTH_NOTING) {
            self.write_whole(&note, &offset.to_string(), 0o640)?;
        }
        Ok(())
    }

    /// Goes by the clock of the database as its nodes have noted it.
    pub(super) fn take_time(&self) {
        if self.config.database.is_some()
            && let Some(offset) = noted_offset(&self.layout.clock())
        {
            clock::set_offset(offset);
        }
    }
}

/// The database that somebody names: a URL, or `sqlite`, which is `None`.
///
/// # Errors
/// It is neither (2).
pub fn database_of(text: &str) -> Result<Option<&str>> {
    match text {
        "sqlite" => Ok(None),
        url if ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) => Ok(Some(url)),
        _ => Err(Refusal::usage("a database is a postgres:// URL, or `sqlite` for the one in the state directory")),
    }
}

/// The newest schema of PostgreSQL that this program knows, and the SQL that makes it.
///
/// # Errors
/// This program was built without PostgreSQL (78).
pub fn shared_schema() -> Result<(u32, String)> {
    shared::newest()
}

fn noted_offset(note: &Path) -> Option<i64> {
    read_small(note, 64).ok()??.trim().parse().ok()
}

#[cfg(feature = "postgres")]
mod shared {
    //! PostgreSQL.

    use std::sync::Arc;

    use anyhow::Result;

    use crate::store::moving::{Mark, Movable};
    use crate::store::postgres::{self, Postgres};
    use crate::store::{Patience, Store};

    pub(super) fn name(url: &str) -> String {
        Postgres::name(url).unwrap_or_else(|_| "PostgreSQL".to_owned())
    }

    pub(super) fn listen(url: &str, wake: Arc<dyn Fn() + Send + Sync>) -> Result<()> {
        Postgres::listen(url, wake)
    }

    pub(super) fn open(url: &str, patience: Patience) -> Result<Box<dyn Store>> {
        Ok(Box::new(Postgres::open(url, patience)?))
    }

    pub(super) fn open_to_move(url: &str) -> Result<Box<dyn Movable>> {
        Ok(Box::new(Postgres::open_to_move(url)?))
    }

    pub(super) fn schema(url: &str) -> Result<Option<(u32, Option<Mark>)>> {
        Postgres::schema(url)
    }

    #[expect(clippy::unnecessary_wraps, reason = "a program without PostgreSQL has no schema to give")]
    pub(super) fn newest() -> Result<(u32, String)> {
        Ok((postgres::NEWEST, Postgres::schema_text()))
    }

    pub(super) fn create(url: &str, new_id: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(Postgres::open_or_create(url, new_id, Patience::OWNER)?))
    }
}

#[cfg(not(feature = "postgres"))]
mod shared {
    //! A program without PostgreSQL says how to get it.

    use std::sync::Arc;

    use anyhow::Result;

    use crate::exit::Refusal;
    use crate::store::moving::{Mark, Movable};
    use crate::store::{Patience, Store};

    pub(super) fn name(_url: &str) -> String {
        "PostgreSQL".to_owned()
    }

    pub(super) fn listen(url: &str, _wake: Arc<dyn Fn() + Send + Sync>) -> Result<()> {
        open(url, Patience::OWNER).map(drop)
    }

    fn lacking() -> anyhow::Error {
        Refusal::config(
            "`database` is set, and this program was built without PostgreSQL: take the line out, or build it with \
             `--features postgres` (it is a default feature)",
        )
    }

    pub(super) fn open(_url: &str, _patience: Patience) -> Result<Box<dyn Store>> {
        Err(lacking())
    }

    pub(super) fn open_to_move(_url: &str) -> Result<Box<dyn Movable>> {
        Err(lacking())
    }

    pub(super) fn schema(_url: &str) -> Result<Option<(u32, Option<Mark>)>> {
        Err(lacking())
    }

    pub(super) fn newest() -> Result<(u32, String)> {
        Err(lacking())
    }

    pub(super) fn create(url: &str, _new_id: &str) -> Result<Box<dyn Store>> {
        open(url, Patience::OWNER)
    }
}
