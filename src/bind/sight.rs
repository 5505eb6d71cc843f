//! Whether this machine sees the cache of its queue. Where machines share a queue, one that does not (it is not mounted, or may
//! only be read) would publish where nobody looks.

use std::path::Path;

use anyhow::Result;
use rustix::fs::Access;

use super::{Home, unusable};
use crate::exit::Refusal;
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

    /// Refuses to make a cache where there is none to be seen although the queue has one.
    pub(super) fn refuse_unseen_cache(&self) -> Result<()> {
        if self.is_shared() && !self.layout.marker().exists() && self.open_bound(Patience::OWNER)?.has_cache()? {
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

pub(super) fn refuse_network(dir: &Path) -> Result<()> {
    match network_of(dir) {
        None => Ok(()),
        Some(kind) => Err(Refusal::config(format!(
            "state_dir {} is on {kind}: SQLite does not work on a network file system; put it on a local disk",
            dir.display()
        ))),
    }
}
