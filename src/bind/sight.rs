//! Whether this machine sees the cache of its queue. Where machines share a queue, one that does not (it is not mounted, or may
//! only be read) would publish where nobody looks.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Result;
use rustix::fs::Access;

use super::{Home, unusable};
use crate::exit::Refusal;
use crate::fault;
use crate::store::Patience;

/// Magic numbers of network file systems (`statfs(2)`): SQLite's shared memory does not work on them.
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
];

impl Home {
    /// Looks whether the cache is there, the one that belongs to this queue, and can be written to.
    ///
    /// # Errors
    /// It is not (78, 77).
    pub fn see_cache(&self) -> Result<()> {
        if !self.layout.marker().exists() {
            return Err(self.unseen());
        }
        self.compare_marker()?;
        let work = self.layout.work();
        let access = rustix::fs::access(&work, Access::WRITE_OK | Access::EXEC_OK);
        access.map_err(|error| unusable(&work, &error.into()))
    }

    /// Where machines share the queue: as [`Self::see_cache`].
    ///
    /// # Errors
    /// As [`Self::see_cache`].
    pub fn see_shared_cache(&self) -> Result<()> {
        if self.is_shared() { self.see_cache() } else { Ok(()) }
    }

    fn unseen(&self) -> anyhow::Error {
        Refusal::config(format!(
            "{} is not the cache of this queue, which others use: is it mounted? (if that cache is lost: `export-queue init --adopt`)",
            self.layout.cache.display()
        ))
    }

    /// Makes the cache, where there is none, and binds it to the queue. Machines that share it may do so at once: what one of
    /// them has only begun is no foreign matter to another.
    pub(super) fn bind_cache(&self) -> Result<()> {
        let (cache, marker) = (&self.layout.cache, self.layout.marker());
        self.refuse_unseen_cache()?;
        self.make_dir(cache, 0o2750)?;
        let id = fs::read_to_string(self.layout.queue_id())?;
        if is_vacant(cache).map_err(|error| unusable(cache, &error))? {
            fault::point("setup.before_marker")?;
            self.write_whole(&marker, id.trim(), 0o640)?;
        } else if marker.exists() {
            self.compare_marker()?;
        } else {
            return Err(Refusal::config(format!(
                "{} is not empty and not a cache of this program (no .export-queue in it): name another cache.dir, or empty it",
                cache.display()
            )));
        }
        self.make_dir(&self.layout.work(), 0o700)?;
        self.note_cache()
    }

    /// Refuses to make a cache where there is none to be seen although the queue has one.
    fn refuse_unseen_cache(&self) -> Result<()> {
        let is_unmarked = || !self.layout.marker().exists();
        // Another machine marks the cache before it tells the database: a second look sees what it did meanwhile.
        if self.is_shared() && is_unmarked() && self.open_bound(Patience::OWNER)?.has_cache()? && is_unmarked() {
            return Err(self.unseen());
        }
        Ok(())
    }

    /// Notes that the queue has a cache.
    pub(super) fn note_cache(&self) -> Result<()> {
        if self.is_shared() { self.open_bound(Patience::OWNER)?.note_cache() } else { Ok(()) }
    }
}

/// The name of the network file system that a directory is on, if it is on one.
pub fn network_of(dir: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(dir).ok()?.f_type.cast_unsigned();
    NETWORK.iter().find(|(magic, _)| *magic == kind & 0xffff_ffff).map(|(_, name)| *name)
}

/// Whether nothing lies in a directory but what somebody who makes a cache of it has begun.
pub(super) fn is_vacant(dir: &Path) -> io::Result<bool> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    Ok(names.iter().all(|name| name == "lost+found" || name.to_string_lossy().starts_with(".export-queue.")))
}

pub(super) fn refuse_network(dir: &Path) -> Result<()> {
    match network_of(dir) {
        None => Ok(()),
        Some(kind) => Err(Refusal::config(format!(
            "state_dir {} is on {kind}: SQLite does not work on a network file system; put it on a local disk",
            dir.display()
        ))),
    }
}
