//! Where everything lies: the paths that the configuration implies, each named once.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// The directories of one queue.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The state directory: database, slots, logs; its owner is the user who runs exports.
    pub state: PathBuf,
    /// The cache directory: published files in shards, and `.work`.
    pub cache: PathBuf,
}

impl Layout {
    /// The layout that a configuration names.
    pub fn of(config: &Config) -> Self {
        Self { state: config.state_dir.clone(), cache: config.cache.dir.clone() }
    }

    /// The SQLite database.
    pub fn database(&self) -> PathBuf {
        self.state.join("queue.db")
    }

    /// The file beside it whose bytes SQLite locks.
    pub fn database_index(&self) -> PathBuf {
        self.state.join("queue.db-shm")
    }

    /// How far the clock of a shared database is ahead of this machine's, for front ends.
    pub fn clock(&self) -> PathBuf {
        self.state.join("clock")
    }

    /// The random id that binds database, cache and state directory, as kept in the state directory.
    pub fn queue_id(&self) -> PathBuf {
        self.state.join("queue.id")
    }

    /// The lock under which the three are created and bound.
    pub fn init_lock(&self) -> PathBuf {
        self.state.join("init.lock")
    }

    /// The directory of slot lock files.
    pub fn slots(&self) -> PathBuf {
        self.state.join("slots")
    }

    /// The lock file of one slot.
    pub fn slot(&self, name: &SlotName) -> PathBuf {
        self.slots().join(name.to_string())
    }

    /// The directory of exporters' logs, and of what this program notes for itself; closed to all but the owner.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// The log of one run.
    pub fn log(&self, token: &str) -> PathBuf {
        self.logs().join(format!("{token}.log"))
    }

    /// What workers have to say about themselves.
    pub fn worker_log(&self) -> PathBuf {
        self.logs().join("worker.txt")
    }

    /// The file that front ends write to wake a waiting dispatcher.
    pub fn poke(&self) -> PathBuf {
        self.state.join("poke")
    }

    /// The file whose mtime is the last tick's.
    pub fn tick(&self) -> PathBuf {
        self.state.join("tick")
    }

    /// The file whose mtime is that of the last walk through the cache.
    pub fn walked(&self) -> PathBuf {
        self.logs().join("walked")
    }

    /// What ticks remember of locks that are held by nobody they can name.
    pub fn suspects(&self) -> PathBuf {
        self.logs().join("suspects.json")
    }

    /// What ticks have said already, so that cron is not told each minute.
    pub fn findings(&self) -> PathBuf {
        self.logs().join("findings.json")
    }

    /// The marker that says whose cache this is.
    pub fn marker(&self) -> PathBuf {
        self.cache.join(".export-queue")
    }

    /// The one lock of the cache.
    pub fn cache_lock(&self) -> PathBuf {
        self.cache.join(".lock")
    }

    /// The directory of private work directories.
    pub fn work(&self) -> PathBuf {
        self.cache.join(".work")
    }

    /// The private directory of one run.
    pub fn work_of(&self, token: &str) -> PathBuf {
        self.work().join(token)
    }

    /// Where a file of that name is published.
    pub fn published(&self, filename: &str) -> PathBuf {
        self.cache.join(crate::key::shard(filename)).join(filename)
    }

    /// The shard directory of a file of that name.
    pub fn shard(&self, filename: &str) -> PathBuf {
        self.cache.join(crate::key::shard(filename))
    }
}

/// A slot's name: the right to be one of a queue's workers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotName {
    /// The queue it belongs to.
    pub queue: String,
    /// Its number, from 0.
    pub number: u32,
}

impl std::fmt::Display for SlotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.queue, self.number)
    }
}

impl SlotName {
    /// The slot whose lock file lies at `path`, if its name is one of ours.
    pub fn from_path(path: &Path) -> Option<Self> {
        let (queue, number) = path.file_name()?.to_str()?.rsplit_once('.')?;
        Some(Self { queue: queue.to_owned(), number: number.parse().ok()? })
    }
}
