//! The poke: a file that front ends write to, so that a dispatcher which waits wakes at once.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::inotify;

use crate::stop::Stop;

/// The file that front ends write to when they have asked for something.
pub(super) struct Poke(rustix::fd::OwnedFd);

impl Poke {
    /// Starts to watch it.
    pub(super) fn watch(path: &Path) -> Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .context("starting to watch")?;
        inotify::add_watch(&fd, path, inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MODIFY)
            .with_context(|| format!("watching {}", path.display()))?;
        Ok(Self(fd))
    }

    /// Waits for a poke, a signal or the end of `patience`; true after a poke.
    pub(super) fn wait(&self, stop: &Stop, patience: Duration) -> Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec::try_from(patience)?;
        let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for a poke"),
        }
        let poked = fds[0].revents().contains(PollFlags::IN);
        let mut bytes = [0_u8; 4096];
        while poked && rustix::io::read(&self.0, &mut bytes).is_ok_and(|read| read > 0) {}
        Ok(poked)
    }
}
