//! What wakes a dispatcher that waits: the poke, a file that front ends write to, and the end of a worker.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::inotify;

use crate::stop::{Deaths, Stop};

/// The file that front ends write to when they have asked for something, and the deaths of workers.
pub(super) struct Poke {
    file: rustix::fd::OwnedFd,
    deaths: Deaths,
}

impl Poke {
    /// Starts to watch both.
    pub(super) fn watch(path: &Path) -> Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .context("starting to watch")?;
        inotify::add_watch(&fd, path, inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MODIFY)
            .with_context(|| format!("watching {}", path.display()))?;
        Ok(Self { file: fd, deaths: Deaths::listen().context("listening for the end of workers")? })
    }

    /// Waits for a poke, a signal, the end of a worker or of `patience`; true after a poke.
    pub(super) fn wait(&self, stop: &Stop, patience: Duration) -> Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec::try_from(patience)?;
        let mut fds = [
            PollFd::new(&self.file, PollFlags::IN),
            PollFd::new(&self.deaths, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for a poke"),
        }
        let poked = fds[0].revents().contains(PollFlags::IN);
        self.deaths.forget();
        let mut bytes = [0_u8; 4096];
        while poked && rustix::io::read(&self.file, &mut bytes).is_ok_and(|read| read > 0) {}
        Ok(poked)
    }
}
