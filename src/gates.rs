//! Gates: a queue starts nothing while the machine is short of memory, busy, or its disk nearly full.

use std::fs;
use std::path::Path;

use rustix::fs::StatVfs;

use crate::config::Queue;
use crate::job::Waiting;

/// The gate of a queue that is closed now, if one is. A machine that cannot say how it is keeps the gate open.
pub fn closed(queue: &Queue, cache: &Path) -> Option<Waiting> {
    if queue.min_free_memory.0 > 0 && free_memory().is_some_and(|free| free < queue.min_free_memory.0) {
        return Some(Waiting::LowMemory);
    }
    if queue.max_load > 0.0 && load().is_some_and(|load| load > queue.max_load) {
        return Some(Waiting::HighLoad);
    }
    if queue.max_pressure > 0.0 && pressure().is_some_and(|share| share > queue.max_pressure) {
        return Some(Waiting::HighLoad);
    }
    if is_disk_low(queue, cache) {
        return Some(Waiting::LowDisk);
    }
    None
}

/// Whether the disk of a directory has less room than a queue wants.
pub fn is_disk_low(queue: &Queue, dir: &Path) -> bool {
    queue.min_free_disk.0 > 0 && free_disk(dir).is_some_and(|free| free < queue.min_free_disk.0)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn free_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The load average of the last minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// The share of the last ten seconds in which some task had to wait for a processor, a disk or memory, whichever is the
/// largest, in percent; `None` where the kernel does not count that (`CONFIG_PSI`).
fn pressure() -> Option<f64> {
    let shares =
        ["cpu", "io", "memory"].map(|what| waited(&fs::read_to_string(format!("/proc/pressure/{what}")).ok()?));
    shares.into_iter().flatten().max_by(f64::total_cmp)
}

/// The ten seconds' share of the line `some avg10=1.23 avg60=…`.
fn waited(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// What an ordinary user may still write to the disk of a directory, in bytes.
pub fn free_disk(dir: &Path) -> Option<u64> {
    rustix::fs::statvfs(dir).ok().map(|fs| room(&fs))
}

/// Whether nothing more fits on the disk of a directory: less than 64 KiB, or no further file.
pub fn has_no_room(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|fs| is_full(&fs))
}

fn room(fs: &StatVfs) -> u64 {
    fs.f_bavail.saturating_mul(fs.f_frsize)
}

/// File systems that do not count files say that they have none.
fn is_full(fs: &StatVfs) -> bool {
    room(fs) < 64 * 1024 || (fs.f_files > 0 && fs.f_favail == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pressure_of_the_last_ten_seconds_is_read() {
        let text = "some avg10=12.34 avg60=1.00 avg300=0.00 total=6498989786\nfull avg10=99.00 avg60=0.00 total=0\n";
        assert_eq!(waited(text), Some(12.34));
        assert_eq!(waited(""), None);
    }

    #[test]
    fn a_disk_is_full_where_no_bytes_or_no_files_are_left() {
        let some = rustix::fs::statvfs("/").unwrap();
        for (bytes, files, free_files, expected) in [
            (1 << 20, 9, 1, false),
            (64 << 10, 9, 1, false),
            (63 << 10, 9, 1, true),
            (0, 0, 0, true),
            (1 << 20, 9, 0, true),
            (1 << 20, 0, 0, false),
        ] {
            let (f_bavail, f_frsize) = (bytes / 512, 512);
            let fs = StatVfs { f_bavail, f_frsize, f_files: files, f_favail: free_files, ..some };
            assert_eq!(is_full(&fs), expected, "{bytes} bytes, {free_files} of {files} files");
        }
    }
}
