//! How a worker hears that it shall stop, while it waits for its exporter, and a dispatcher that a worker has ended.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// Signals that ask this process to end.
#[derive(Debug)]
pub struct Stop {
    wake: UnixStream,
    count: AtomicU32,
}

impl Stop {
    /// Starts listening to TERM, INT and HUP. A write beyond the file size limit becomes an error instead of a death.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        survive_file_size_limit()?;
        Ok(Self { wake, count: AtomicU32::new(0) })
    }

    /// How often this process was asked to end.
    pub fn count(&self) -> u32 {
        let mut bytes = [0; 64];
        while let Ok(read) = (&self.wake).read(&mut bytes) {
            if read == 0 {
                break;
            }
            self.count.fetch_add(u32::try_from(read).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        self.count.load(Ordering::Relaxed)
    }

    /// Whether this process was asked to end.
    pub fn is_asked(&self) -> bool {
        self.count() > 0
    }

    /// Waits until a further signal comes or the time is over; true when this process is asked to end.
    pub fn wait(&self, patience: Duration) -> bool {
        if !self.is_asked()
            && let Ok(timeout) = Timespec::try_from(patience)
        {
            // An interrupted or failed wait is only a shorter one.
            let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&timeout));
        }
        self.is_asked()
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Deaths of children, as something to wait for.
#[derive(Debug)]
pub struct Deaths(UnixStream);

impl Deaths {
    /// Starts listening to CHLD.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, write)?;
        Ok(Self(wake))
    }

    /// Forgets those heard of until now.
    pub fn forget(&self) {
        while (&self.0).read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for Deaths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Turns SIGXFSZ from a death into the error of the write that met the limit; exporters have it at its default.
///
/// # Errors
/// The handler cannot be installed.
pub fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}
