//! What kind of file system a directory is on.

use std::path::Path;

use anyhow::Result;

use crate::exit::Refusal;

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
