//! Opening a queue: who may, what is created on first use, and the id that binds database, cache and state directory.
//!
//! One user runs, recovers, publishes and sweeps: the owner of the state directory. Front ends in its group only read,
//! insert and mark; they create nothing. A database that was lost or replaced is noticed, never silently made anew.

mod engine;
mod sight;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};

use crate::cache::{Cache, CacheLock, Facts, Shards};
use crate::config::{self, Config, Loaded};
use crate::exit::Refusal;
use crate::fault;
use crate::layout::Layout;
use crate::lock::{self, Record};
use crate::process;
use crate::retention::Policy;
use crate::store::sqlite::Sqlite;
use crate::store::{Listeners, Node, Patience, Store};

pub use self::engine::{database_of, shared_schema};
pub use self::sight::network_of;
use self::sight::{is_vacant, refuse_network};

/// How long a first use waits for another first use.
const FIRST_USE: Duration = Duration::from_secs(10);

/// The mode of a state directory: the group may create the database's side files in it, and nobody may move or remove what
/// belongs to the owner.
pub const STATE_MODE: u32 = 0o3770;

/// A queue that was opened: its configuration and where everything lies.
#[derive(Debug, Clone)]
pub struct Home {
    /// The configuration in force.
    pub config: Config,
    /// The file it came from, for the workers to read again.
    pub config_path: Option<PathBuf>,
    /// What stood in it.
    config_text: String,
    /// Where everything lies.
    pub layout: Layout,
    /// The cache.
    pub cache: Cache,
}

/// Makes 32 random hexadecimal digits.
///
/// # Errors
/// The kernel has no random bytes.
pub fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).context("asking for random bytes")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Makes a run's token: 20 random hexadecimal digits. It names the work directory, and is no longer than it must be:
/// browsers keep a socket of 45 bytes below their TMPDIR, and a socket's path may have 107.
///
/// # Errors
/// The kernel has no random bytes.
pub fn new_token() -> Result<String> {
    Ok(random_hex()?.split_off(12))
}

/// Which node this is: this boot and this state directory, never the host's name.
pub fn node_id(layout: &Layout) -> Result<String> {
    let meta = fs::metadata(&layout.state).with_context(|| format!("looking at {}", layout.state.display()))?;
    Ok(format!("{}:{}:{}", process::boot_id(), meta.dev(), meta.ino()))
}

/// Who is told of jobs that end.
pub fn audience(config: &Config) -> Listeners {
    let of = |event: &str| {
        let told = config.listeners().filter(|(_, notify)| notify.on.iter().any(|on| on == event));
        told.map(|(name, _)| name).collect()
    };
    Listeners { ready: of("ready"), failed: of("failed") }
}

/// Shows the machines that share the queue that this one is there, and goes on by their clock.
///
/// # Errors
/// The database cannot be used.
pub fn show(home: &Home, store: &mut dyn Store) -> Result<()> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    store.heartbeat(&Node {
        id: node_id(&home.layout)?,
        name: name.trim().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        slots: home.config.queue.values().map(|queue| queue.slots).sum(),
        lanes: Some(home.config.queue.iter().map(|(name, queue)| (name.clone(), queue.slots)).collect()),
    })?;
    home.keep_time(store)
}

/// What a lock file says of this process.
pub fn own_record() -> Record {
    Record { boot: process::boot_id(), holder: Some(process::myself()), ..Record::default() }
}

/// If this process is root and the state directory belongs to somebody else, becomes that user for good.
///
/// # Errors
/// The user is unknown or the change is refused (77).
pub fn become_owner(config: &Config) -> Result<()> {
    let Ok(meta) = fs::metadata(&config.state_dir) else {
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() || meta.uid() == 0 {
        return Ok(());
    }
    let become_user = || -> Result<()> {
        use nix::unistd::{Gid, Uid, User, initgroups, setgid, setgroups, setuid};
        let uid = Uid::from_raw(meta.uid());
        if let Some(user) = User::from_uid(uid)? {
            initgroups(&std::ffi::CString::new(user.name)?, user.gid)?;
            setgid(user.gid)?;
        } else {
            let gid = Gid::from_raw(meta.gid());
            setgroups(&[gid])?;
            setgid(gid)?;
        }
        Ok(setuid(uid)?)
    };
    become_user().map_err(|error| {
        let (uid, dir) = (meta.uid(), config.state_dir.display());
        Refusal::not_permitted(format!("cannot become user {uid}, the owner of {dir}: {error:#}"))
    })
}

impl Home {
    /// The queue that a configuration describes; nothing is opened or created yet.
    ///
    /// # Errors
    /// `group` is no group of this machine (78).
    pub fn of(loaded: Loaded) -> Result<Self> {
        let Loaded { config, path: config_path, text: config_text, .. } = loaded;
        let layout = Layout::of(&config);
        let gid = group_of(&config)?;
        let settings = &config.cache;
        let policy = Policy { max_age: settings.max_age, grace: settings.serve_grace.0, from: settings.ttl_from };
        let cache = Cache {
            layout: layout.clone(),
            policy,
            mode: config.cache.mode.0,
            gid,
            is_shared: config.database.is_some(),
        };
        let home = Self { config, config_path, config_text, layout, cache };
        home.take_time();
        Ok(home)
    }

    /// Reads the configuration again, if it came from a file; false when it says the same as before.
    ///
    /// # Errors
    /// It is not valid any more (78), or moves the queue elsewhere while it is in use (78).
    pub fn reload(&mut self) -> Result<bool> {
        let Some(path) = self.config_path.clone() else {
            return Ok(false);
        };
        if fs::read_to_string(&path).is_ok_and(|text| text == self.config_text) {
            return Ok(false);
        }
        let loaded =
            config::load(Some(&path), &config::environment()).map_err(|error| Refusal::config(error.to_string()))?;
        let next = Self::of(loaded)?;
        if (&next.layout.state, &next.layout.cache) != (&self.layout.state, &self.layout.cache) {
            return Err(Refusal::config("state_dir or cache.dir changed while the queue is in use: this process ends"));
        }
        if next.config.database != self.config.database {
            return Err(Refusal::config("`database` changed while the queue is in use: this process ends"));
        }
        *self = next;
        Ok(true)
    }

    /// Whether a queue was ever set up here.
    pub fn is_set_up(&self) -> bool {
        self.layout.queue_id().exists()
    }

    /// Opens the queue for its owner, creating what is missing on first use.
    ///
    /// # Errors
    /// Another user's queue (77), or something that does not belong together (78).
    pub fn open_as_owner(&self) -> Result<Box<dyn Store>> {
        let store = self.open_owned(Patience::OWNER)?;
        self.keep_time(&*store)?;
        Ok(store)
    }

    fn open_owned(&self, patience: Patience) -> Result<Box<dyn Store>> {
        self.refuse_others()?;
        let layout = &self.layout;
        let parts = [layout.queue_id(), layout.marker(), layout.work(), layout.slots(), layout.logs(), layout.poke()];
        if !parts.iter().all(|part| part.exists()) {
            self.set_up()?;
        }
        let mut store = self.open_bound(patience)?;
        store.tell(audience(&self.config));
        self.compare_marker()?;
        store.tell(audience(&self.config));
        Ok(store)
    }

    /// Opens the queue for asking: the owner as [`Self::open_as_owner`], others only what is there.
    ///
    /// # Errors
    /// Nobody has set the queue up (78, "run init"), or as [`Self::open_as_owner`].
    pub fn open_to_ask(&self) -> Result<Box<dyn Store>> {
        self.open_to_ask_with(Patience::ASKER)
    }

    /// As [`Self::open_to_ask`], with that patience for a database on another machine.
    ///
    /// # Errors
    /// As [`Self::open_to_ask`].
    pub fn open_to_ask_with(&self, patience: Patience) -> Result<Box<dyn Store>> {
        if self.is_owner() {
            return self.open_owned(patience);
        }
        if !self.is_set_up() {
            let dir = self.layout.state.display();
            return Err(match fs::metadata(self.layout.queue_id()) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.not_in_group(),
                _ => Refusal::config(format!(
                    "no queue is set up in {dir}: run `export-queue init` as the user who runs exports"
                )),
            });
        }
        self.open_bound(patience)
    }

    /// Opens the queue for reading; `None` when it was never set up.
    ///
    /// # Errors
    /// The database was lost or replaced (78), or this user may not read it (77).
    pub fn open_to_read(&self) -> Result<Option<Box<dyn Store>>> {
        self.open_to_look(Patience::ASKER)
    }

    /// As [`Self::open_to_read`], waiting no longer than that for a database on another machine.
    ///
    /// # Errors
    /// As [`Self::open_to_read`].
    pub fn open_to_look(&self, patience: Patience) -> Result<Option<Box<dyn Store>>> {
        let id = match fs::read_to_string(self.layout.queue_id()) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(self.not_in_group());
            }
            Err(error) => {
                return Err(error).context(format!("reading {}", self.layout.queue_id().display()));
            }
        };
        let store = self.open_engine_to_read(patience)?;
        self.compare(&store.queue_id()?, id.trim(), &self.engine_name())?;
        Ok(Some(store))
    }

    fn not_in_group(&self) -> anyhow::Error {
        refuse_reader(&self.layout.state)
    }

    /// The published file of that name if its path may be handed out, with the end of the promise.
    ///
    /// # Errors
    /// This user may not look into the cache (77), or it cannot be looked at.
    pub fn ready(&self, filename: &str, now: DateTime<Utc>) -> Result<Option<(Facts, Option<DateTime<Utc>>)>> {
        self.ready_in(&mut Shards::default(), filename, now)
    }

    /// The same for one of many files.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub fn ready_in(
        &self,
        shards: &mut Shards,
        filename: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<(Facts, Option<DateTime<Utc>>)>> {
        self.cache.ready_in(shards, filename, now).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => refuse_reader(&self.layout.cache),
            _ => anyhow::Error::new(error).context(format!("looking for {filename}")),
        })
    }

    /// Takes the cache lock; `None` when somebody kept it for all of `patience`.
    ///
    /// # Errors
    /// Its file cannot be used (77, 78): without the lock nothing is published or deleted.
    pub fn lock_cache(&self, patience: Duration) -> Result<Option<CacheLock>> {
        self.cache.lock(own_record(), patience).map_err(|error| unusable(&self.layout.cache_lock(), &error))
    }

    /// Whether this process runs as the owner of the state directory (or would create it).
    pub fn is_owner(&self) -> bool {
        match fs::metadata(&self.layout.state) {
            Ok(meta) => meta.uid() == rustix::process::geteuid().as_raw(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Refuses every user but the owner.
    ///
    /// # Errors
    /// This is another user (77).
    pub fn refuse_others(&self) -> Result<()> {
        if self.is_owner() {
            return self.require_group();
        }
        let dir = self.layout.state.display();
        Err(match fs::metadata(&self.layout.state) {
            Ok(meta) => {
                let owner = user_name(meta.uid());
                Refusal::not_permitted(format!(
                    "only {owner}, the owner of {dir}, may do this: run it as that user (or as root)"
                ))
            }
            Err(error) => Refusal::not_permitted(format!("{dir}: {error}")),
        })
    }

    /// The owner must be able to give published files to the group of the queue.
    fn require_group(&self) -> Result<()> {
        let gid = self.cache.gid;
        let groups = nix::unistd::getgroups().unwrap_or_default();
        let is_member = rustix::process::getegid().as_raw() == gid || groups.iter().any(|group| group.as_raw() == gid);
        if is_member || rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let (user, group) = (user_name(rustix::process::geteuid().as_raw()), group_name(gid));
        Err(Refusal::config(format!(
            "{user} runs exports but is not in group {group}: `usermod --append --groups {group} {user}`"
        )))
    }

    fn open_bound(&self, patience: Patience) -> Result<Box<dyn Store>> {
        let id = fs::read_to_string(self.layout.queue_id()).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => self.not_in_group(),
            _ => anyhow::Error::new(error).context(format!("reading {}", self.layout.queue_id().display())),
        })?;
        let store = self.open_engine(id.trim(), patience)?;
        self.compare(&store.queue_id()?, id.trim(), &self.engine_name())?;
        Ok(store)
    }

    /// A queue that was set up has a database that is not empty.
    fn refuse_lost(&self, path: &Path) -> Result<()> {
        let what = match fs::metadata(path) {
            Ok(meta) if meta.len() > 0 => return Ok(()),
            Ok(_) => "is empty",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing",
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(self.not_in_group());
            }
            Err(error) => return Err(error).context(format!("looking at {}", path.display())),
        };
        let path = path.display();
        Err(Refusal::config(format!(
            "{path} {what}: it is not a usable database; recover with `export-queue init --adopt` (files stay served)"
        )))
    }

    fn compare(&self, found: &str, expected: &str, place: &str) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Refusal::config(format!(
            "{place} belongs to another queue than {}; if they shall be one, run `export-queue init --adopt`",
            self.layout.state.display()
        )))
    }

    fn compare_marker(&self) -> Result<()> {
        let (marker, id) = (self.layout.marker(), fs::read_to_string(self.layout.queue_id())?);
        let found = fs::read_to_string(&marker).with_context(|| format!("reading {}", marker.display()))?;
        self.compare(found.trim(), id.trim(), &self.layout.cache.display().to_string())
    }

    /// Creates what is missing and binds it together, one process at a time.
    ///
    /// # Errors
    /// A directory cannot be made or is not ours to take (77, 78).
    pub fn set_up(&self) -> Result<()> {
        let state = &self.layout.state;
        self.make_dir(state, STATE_MODE)?;
        self.refuse_others()?;
        refuse_network(state)?;
        let lock = self.lock_set_up()?;
        self.make_parts()?;
        self.make_database()?;
        self.bind_cache()?;
        Ok(lock.release()?)
    }

    /// Takes the lock under which the parts of a queue are made and bound together.
    ///
    /// # Errors
    /// Another process holds it for ten seconds (75), or its file cannot be used.
    pub fn lock_set_up(&self) -> Result<lock::Held> {
        let path = self.layout.init_lock();
        let held = lock::take_within(&path, FIRST_USE).map_err(|error| unusable(&path, &error))?;
        held.ok_or_else(|| Refusal::try_later(format!("{} is held by another first use", path.display())))
    }

    fn make_parts(&self) -> Result<()> {
        self.make_dir(&self.layout.slots(), 0o700)?;
        self.make_dir(&self.layout.logs(), 0o700)?;
        self.make_file(&self.layout.poke(), 0o660)
    }

    fn make_database(&self) -> Result<()> {
        let id_path = self.layout.queue_id();
        if id_path.exists() {
            return match self.config.database {
                None => self.refuse_lost(&self.layout.database()),
                Some(_) => Ok(()),
            };
        }
        fault::point("setup.before_database")?;
        let store = self.create_engine(&random_hex()?)?;
        fault::point("setup.before_id")?;
        self.write_whole(&id_path, &store.queue_id()?, 0o640)
    }

    /// Binds what is there to each other anew: a usable database keeps its rows, an unusable one is set aside.
    ///
    /// # Errors
    /// As [`Self::set_up`].
    pub fn adopt(&self) -> Result<Vec<String>> {
        let mut told = Vec::new();
        self.make_dir(&self.layout.state, STATE_MODE)?;
        self.refuse_others()?;
        refuse_network(&self.layout.state)?;
        let lock = self.lock_set_up()?;
        self.make_parts()?;
        self.make_dir(&self.layout.cache, 0o2750)?;
        if !self.layout.marker().exists() && !is_vacant(&self.layout.cache)? && !has_our_files(&self.cache) {
            return Err(Refusal::config(format!(
                "{} holds nothing of this program: it is not adopted",
                self.layout.cache.display()
            )));
        }
        let id = self.adopt_database(&mut told)?;
        self.write_whole(&self.layout.queue_id(), &id, 0o640)?;
        self.write_whole(&self.layout.marker(), &id, 0o640)?;
        self.note_cache()?;
        self.make_dir(&self.layout.work(), 0o700)?;
        lock.release()?;
        told.push(format!(
            "{}, {} and its database belong together now",
            self.layout.state.display(),
            self.layout.cache.display()
        ));
        Ok(told)
    }

    /// A shared database keeps its id: other machines go by it too.
    fn adopt_database(&self, told: &mut Vec<String>) -> Result<String> {
        if self.config.database.is_some() {
            return self.create_engine(&random_hex()?)?.queue_id();
        }
        let path = self.layout.database();
        let usable =
            |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0) && Sqlite::open(path, "").is_ok();
        if path.exists() && !usable(&path) {
            told.push(format!("the unusable database is kept as {}", set_aside(&path)?.display()));
        }
        self.make_file(&path, 0o660)?;
        let id = random_hex()?;
        Sqlite::open(&path, &id)?.adopt(&id)?;
        Ok(id)
    }

    fn make_dir(&self, dir: &Path, mode: u32) -> Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let make = || -> io::Result<()> {
            if let Some(parent) = dir.parent() {
                fs::create_dir_all(parent)?;
            }
            match DirBuilder::new().mode(mode & 0o777).create(dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {
                    return Ok(());
                }
                made => made?,
            }
            let opened = File::open(dir)?;
            if self.cache.gid != opened.metadata()?.gid() {
                fchown(&opened, None, Some(self.cache.gid))?;
            }
            opened.set_permissions(Permissions::from_mode(mode))
        };
        make().map_err(|error| unusable(dir, &error))
    }

    fn make_file(&self, path: &Path, mode: u32) -> Result<()> {
        let make = || -> io::Result<()> {
            let file = match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
                opened => opened?,
            };
            self.give_away(&file, mode)
        };
        make().map_err(|error| unusable(path, &error))
    }

    fn give_away(&self, file: &File, mode: u32) -> io::Result<()> {
        if self.cache.gid != file.metadata()?.gid() {
            fchown(file, None, Some(self.cache.gid))?;
        }
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// Writes a small file so that it is there whole or not at all.
    fn write_whole(&self, path: &Path, text: &str, mode: u32) -> Result<()> {
        let write = || -> io::Result<()> {
            let dir = path.parent().unwrap_or(Path::new("/"));
            // Until then it has a name that begins with its own: a part of a cache that is being made.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mut file = tempfile::Builder::new().prefix(&format!("{name}.")).tempfile_in(dir)?;
            writeln!(file, "{text}")?;
            self.give_away(file.as_file(), mode)?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            File::open(dir)?.sync_all()
        };
        write().map_err(|error| unusable(path, &error))
    }
}

/// The error for a user who may not look into one of our directories: names its owner and the group to join.
fn refuse_reader(dir: &Path) -> anyhow::Error {
    let (uid, gid) = fs::metadata(dir).map_or((0, 0), |meta| (meta.uid(), meta.gid()));
    Refusal::not_permitted(format!(
        "this user may not read {}, which belongs to {}: it must be in group {}",
        dir.display(),
        user_name(uid),
        group_name(gid)
    ))
}

/// Moves a database that cannot be used, and what belongs to it, out of the way.
fn set_aside(path: &Path) -> Result<PathBuf> {
    let kept = path.with_extension(format!("db.broken-{}", crate::clock::now().format("%Y%m%dT%H%M%S%3f")));
    fs::rename(path, &kept).with_context(|| format!("moving {} away", path.display()))?;
    for suffix in ["-wal", "-shm"] {
        let with = |base: &Path| PathBuf::from(format!("{}{suffix}", base.display()));
        match fs::rename(with(path), with(&kept)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(kept)
}

/// The error for a file of ours that cannot be used: names it, its owner and the fault.
pub fn unusable(path: &Path, error: &io::Error) -> anyhow::Error {
    let message = match fs::symlink_metadata(path) {
        Ok(meta) => format!("{} (owned by {}): {error}", path.display(), user_name(meta.uid())),
        Err(_) => format!("{}: {error}", path.display()),
    };
    match error.kind() {
        io::ErrorKind::PermissionDenied => Refusal::not_permitted(message),
        io::ErrorKind::StorageFull => Refusal::try_later(message),
        _ => Refusal::config(message),
    }
}

/// Whether a directory holds nothing, but for what a file system itself puts there.
fn has_our_files(cache: &Cache) -> bool {
    cache.walk(|_| {}).next().is_some()
}

fn group_of(config: &Config) -> Result<u32> {
    let Some(name) = &config.group else {
        let gid = fs::metadata(&config.state_dir).map(|meta| meta.gid());
        return Ok(gid.unwrap_or_else(|_| rustix::process::getegid().as_raw()));
    };
    match nix::unistd::Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(Refusal::config(format!("group = {name:?}: there is no such group on this machine"))),
        Err(error) => Err(Refusal::config(format!("group = {name:?}: {error}"))),
    }
}

/// The name of a user, or its number.
pub fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// The name of a group, or its number.
pub fn group_name(gid: u32) -> String {
    let group = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid));
    group.ok().flatten().map_or_else(|| format!("{gid}"), |group| group.name)
}

/// Reads at most `limit` bytes of a small regular file, following no link and waiting for nobody; missing is `None`.
pub fn read_small(path: &Path, limit: u64) -> io::Result<Option<String>> {
    let mut text = String::new();
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) if !file.metadata()?.is_file() => Err(io::Error::other("is not a regular file")),
        Ok(file) => file.take(limit).read_to_string(&mut text).map(|_| Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
