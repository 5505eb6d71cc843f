//! Decides whether the bytes an exporter left behind are a whole document, because exit 0 proves nothing: Chromium
//! exits 0 on a full disk, on TERM and on a dead renderer.
//!
//! It reads an output through one descriptor, which the caller then publishes. On any bytes it ends soon, in little
//! memory, without a panic and without waiting on a FIFO. Damage is a [`Fault`], trouble of ours (EIO) an `io::Error`.
//! It finds a cut end, a hole, a flipped byte, something appended. It does not ask whether a document is *valid*, nor
//! looks inside a PDF: that is for the format's `verify` command.
//!
//! `zip::ZipArchive` would index a whole directory before it tells how long that is, fall back to earlier end records
//! when the last is bad, and drop the first of two members of one name. So `end_record` proves that the last record
//! will be taken and its count is small, then `ZipIterable` walks the members one by one. It is in zip's `unstable`
//! module: Cargo.toml must name zip's exact version.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;
use zip::{CompressionMethod, ZipReadOptions};

/// More members than any book has; EPUB sets no limit.
const MAX_MEMBERS: u64 = 100_000;
/// What any EPUB may unpack to; a larger one may to 200 times its size.
const MAX_UNPACKED: u64 = 2 << 30;

/// Names what an output is to be checked as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An EPUB container, all members read.
    Epub,
    /// A PDF, head and tail read.
    Pdf,
    /// A Mobipocket book, record table read.
    Mobi,
    /// A KF8 book, which has the frame of a Mobipocket book.
    Azw3,
    /// Any non-empty regular file.
    Any,
}

/// Says why an output is not to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is at the path.
    Missing,
    /// A link, directory, FIFO, socket or device is at the path.
    NotRegular,
    /// The file has other names, by which it could be changed later.
    Linked,
    /// The file has no bytes.
    Empty,
    /// The file is over the limit.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit it passed.
        limit: u64,
    },
    /// The bytes are not a whole document, for this reason.
    Invalid(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no file was written"),
            Self::NotRegular => f.write_str("not a regular file"),
            Self::Linked => f.write_str("the file has other hard links"),
            Self::Empty => f.write_str("the file is empty"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "{bytes} bytes, the limit is {limit}")
            }
            Self::Invalid(reason) => write!(f, "the file is damaged: {reason}"),
        }
    }
}

/// Holds an output that passed, open for reading at its start.
#[derive(Debug)]
pub struct Checked {
    /// The descriptor the bytes were checked through.
    pub file: File,
    /// Its size when it was checked.
    pub bytes: u64,
}

/// Checks the file at `path`, where a `max_bytes` of 0 sets no bound, and fails only for trouble of ours.
pub fn check(path: &Path, kind: Kind, max_bytes: u64) -> io::Result<Result<Checked, Fault>> {
    match examine(path, kind, max_bytes) {
        Ok(checked) => Ok(Ok(checked)),
        Err(Stop::Fault(fault)) => Ok(Err(fault)),
        Err(Stop::Ours(error)) => Err(error),
    }
}

/// Why a check ended early: the file's fault or ours.
#[derive(Debug)]
enum Stop {
    Fault(Fault),
    Ours(io::Error),
}

impl From<io::Error> for Stop {
    /// Only the kernel's errors carry a number; its EINVAL is the answer to a seek that a lying offset asked for.
    fn from(error: io::Error) -> Self {
        match (error.raw_os_error(), error.kind()) {
            (Some(_), kind) if kind != io::ErrorKind::InvalidInput => Self::Ours(error),
            (Some(_), _) => invalid("it points outside itself"),
            (None, io::ErrorKind::UnexpectedEof) => invalid("it ends too early"),
            (None, _) => invalid(error.to_string().to_lowercase()),
        }
    }
}

impl From<ZipError> for Stop {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(error) => error.into(),
            _ => invalid("a zip header is broken"),
        }
    }
}

fn invalid(reason: impl Into<String>) -> Stop {
    Stop::Fault(Fault::Invalid(reason.into()))
}

fn demand(holds: bool, reason: &str) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(invalid(reason)) }
}

fn examine(path: &Path, kind: Kind, max_bytes: u64) -> Result<Checked, Stop> {
    let file = open(path)?;
    let bytes = size_of_regular(&file, max_bytes)?;
    let view = View { file: &file, bytes };
    match kind {
        Kind::Epub => epub(view)?,
        Kind::Pdf => pdf(view)?,
        Kind::Mobi | Kind::Azw3 => mobi(view)?,
        Kind::Any => {}
    }
    (&file).rewind()?;
    Ok(Checked { file, bytes })
}

fn open(path: &Path) -> Result<File, Stop> {
    // NONBLOCK: opening a FIFO must not wait for its writer. NOCTTY: a worker leads a session without a terminal.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    opened.map(File::from).map_err(not_opened)
}

fn not_opened(errno: Errno) -> Stop {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Stop::Fault(Fault::Missing),
        // A symbolic link; a socket or a device nobody serves.
        Errno::LOOP | Errno::NXIO | Errno::NODEV => Stop::Fault(Fault::NotRegular),
        // The directory is ours, so only the exporter can have taken the permission away.
        Errno::ACCESS => invalid("it may not be read"),
        other => Stop::Ours(other.into()),
    }
}

fn size_of_regular(file: &File, limit: u64) -> Result<u64, Stop> {
    let found = file.metadata()?;
    let bytes = found.len();
    let fault = if !found.is_file() {
        Fault::NotRegular
    } else if found.nlink() != 1 {
        Fault::Linked
    } else if bytes == 0 {
        Fault::Empty
    } else if limit != 0 && bytes > limit {
        Fault::TooLarge { bytes, limit }
    } else {
        return Ok(bytes);
    };
    Err(Stop::Fault(fault))
}

/// An open output and its size.
#[derive(Clone, Copy)]
struct View<'a> {
    file: &'a File,
    bytes: u64,
}

impl View<'_> {
    /// Returns up to `most` bytes (a small constant) from `at`; fewer at the end of the file.
    fn piece(mut self, at: u64, most: u64) -> Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(at))?;
        self.file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns up to `most` bytes (a small constant) from the end of the file.
    fn tail(self, most: u64) -> Result<Vec<u8>, Stop> {
        self.piece(self.bytes.saturating_sub(most), most)
    }
}

/// Reads the little-endian number of `width` bytes (at most 8) at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Result<u64, Stop> {
    let field = bytes.get(at..).and_then(|rest| rest.get(..width));
    let field = field.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok(field.iter().rfold(0, |n, b| n << 8 | u64::from(*b)))
}

/// Checks an EPUB container (EPUB 3.3, §4 "OCF"): `mimetype` first and plain, every member readable.
fn epub(view: View<'_>) -> Result<(), Stop> {
    let head = view.piece(0, 58)?;
    demand(head.starts_with(b"PK\x03\x04"), "it is not a zip file")?;
    let plain = number(&head, 8, 2)? == 0 && number(&head, 28, 2)? == 0;
    let mimetype = head.get(30..) == Some(b"mimetypeapplication/epub+zip");
    demand(plain && mimetype, "it does not begin with a plain mimetype")?;
    let directory = end_record(view)?;
    let archive_offset = ArchiveOffset::Known(0);
    let mut zip = ZipIterable::try_new(view.file, Config { archive_offset })?;
    survey(&mut zip, view.bytes, directory.start)?;
    read_members(&mut zip, view.file)
}

/// What an end record says of the directory.
struct Directory {
    members: u64,
    start: u64,
    size: u64,
    end: u64,
}

/// Proves that the last end record closes the file and that a directory of a bearable length leads up to it, so that
/// zip will look no further (APPNOTE 6.3.10, 4.3.14 to 4.3.16).
fn end_record(view: View<'_>) -> Result<Directory, Stop> {
    let mut found = end_record_32(view)?;
    if found.members == 0xffff || found.size == 0xffff_ffff || found.start == 0xffff_ffff {
        found = end_record_64(view, found)?;
    }
    demand(found.members <= MAX_MEMBERS, "it has over 100000 members")?;
    let begins = view.piece(found.start, 4)? == b"PK\x01\x02" && found.members * 46 <= found.size;
    let ends = found.start.checked_add(found.size) == Some(found.end);
    demand(begins && ends, "its directory is misplaced")?;
    Ok(found)
}

fn end_record_32(view: View<'_>) -> Result<Directory, Stop> {
    let tail = view.tail(22 + u64::from(u16::MAX))?;
    // The signature is looked for where a whole record still fits.
    let room = tail.get(..tail.len().saturating_sub(18));
    let at = room.and_then(|room| find_last(room, b"PK\x05\x06"));
    let record = at.and_then(|at| tail.get(at..));
    let record = record.ok_or_else(|| invalid("its directory is missing"))?;
    let closes = record.len() as u64 == 22 + number(record, 20, 2)?;
    demand(closes, "something follows its directory")?;
    let one_disk = number(record, 4, 4)? == 0 && record.get(8..10) == record.get(10..12);
    demand(one_disk, "it is one part of a split zip file")?;
    Ok(Directory {
        members: number(record, 10, 2)?,
        start: number(record, 16, 4)?,
        size: number(record, 12, 4)?,
        end: view.bytes.saturating_sub(record.len() as u64),
    })
}

/// Reads the zip64 record (56 bytes, as everyone writes it) and its locator (20), if they stand before the plain one.
fn end_record_64(view: View<'_>, plain: Directory) -> Result<Directory, Stop> {
    let end = plain.end.saturating_sub(76);
    let record = view.piece(end, 76)?;
    if record.get(56..60) != Some(b"PK\x06\x07") {
        return Ok(plain);
    }
    let known = record.starts_with(b"PK\x06\x06") && number(&record, 4, 8)? == 44;
    let found = number(&record, 64, 8)? == end && record.get(24..32) == record.get(32..40);
    let disks = number(&record, 16, 8)? | number(&record, 60, 4)? | number(&record, 72, 4)? >> 1;
    demand(known && found && disks == 0, "its zip64 record is broken")?;
    Ok(Directory {
        members: number(&record, 32, 8)?,
        start: number(&record, 48, 8)?,
        size: number(&record, 40, 8)?,
        end,
    })
}

/// Bounds the work before it begins: members fit together before the directory, each behind a header of 30 bytes and its
/// name, and zip stops one that outgrows its claim.
fn survey(zip: &mut ZipIterable<&File>, len: u64, room: u64) -> Result<(), Stop> {
    let (mut packed, mut unpacked) = (0_u64, 0_u64);
    let (mut mimetype, mut container) = (false, false);
    for entry in zip.files()? {
        let entry = entry?;
        let name = entry.name_raw();
        let plain = [CompressionMethod::Stored, CompressionMethod::Deflated];
        if entry.encrypted() || !plain.contains(&entry.compression()) {
            return Err(of_member(name, "is encrypted or not deflated"));
        }
        packed = packed.saturating_add(entry.compressed_size()).saturating_add(30 + name.len() as u64);
        unpacked = unpacked.saturating_add(entry.size());
        mimetype |= name == b"mimetype" && entry.header_start() == 0 && entry.size() == 20;
        container |= name == b"META-INF/container.xml";
    }
    let bearable = unpacked <= MAX_UNPACKED.max(len.saturating_mul(200));
    demand(packed <= room, "its members overlap or are cut off")?;
    demand(bearable, "it would unpack to far more than its size")?;
    demand(mimetype, "its mimetype is not listed")?;
    demand(container, "META-INF/container.xml is missing")
}

/// Unpacks every member into nothing; zip compares the CRC at the end of each.
fn read_members(zip: &mut ZipIterable<&File>, mut body: &File) -> Result<(), Stop> {
    for entry in zip.files()? {
        let entry = entry?;
        let (name, claimed) = (entry.name_raw().to_vec(), entry.size());
        let member = entry.with_reader(&mut body, ZipReadOptions::new());
        let copy = |mut member| io::copy(&mut member, &mut io::sink()).map_err(Stop::from);
        match member.map_err(Stop::from).and_then(copy) {
            Ok(bytes) if bytes == claimed => {}
            Ok(_) => return Err(of_member(&name, "is shorter than it claims")),
            Err(Stop::Fault(Fault::Invalid(reason))) => return Err(of_member(&name, &reason)),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

fn of_member(name: &[u8], what: &str) -> Stop {
    let name: String = String::from_utf8_lossy(name).chars().take(80).collect();
    invalid(format!("member {name:?}: {what}"))
}

/// Checks the head and the tail of a PDF (ISO 32000-2, 7.5.2 and 7.5.5).
fn pdf(view: View<'_>) -> Result<(), Stop> {
    let head = view.piece(0, 1024)?;
    let found = head.windows(5).position(|word| word == b"%PDF-");
    let header = found.ok_or_else(|| invalid("it is not a PDF"))?;
    let tail = view.tail(4096)?;
    let blank = |byte: &&u8| **byte == 0 || byte.is_ascii_whitespace();
    let blanks = tail.iter().rev().take_while(blank).count();
    let text = tail.get(..tail.len() - blanks).unwrap_or_default();
    let closed = text.strip_suffix(b"%%EOF").filter(|_| blanks <= 1024);
    let closed = closed.ok_or_else(|| invalid("it does not end with %%EOF"))?;
    let table = startxref(closed).filter(|at| *at < view.bytes);
    let table = table.ok_or_else(|| invalid("its startxref is missing or points outside"))?;
    // Readers count from the header where something stands before it.
    let shifted = table.saturating_add(header as u64);
    let found = starts_table(&view.piece(table, 64)?) || starts_table(&view.piece(shifted, 64)?);
    demand(found, "its startxref does not lead to a table")
}

fn startxref(text: &[u8]) -> Option<u64> {
    let keyword = b"startxref";
    let last = text.get(text.len().saturating_sub(2048)..)?;
    let (number, rest) = digits(last.get(find_last(last, keyword)? + keyword.len()..)?)?;
    rest.trim_ascii().is_empty().then_some(number)
}

/// Tells a table (`xref`) or the object that holds a cross-reference stream (`12 0 obj`).
fn starts_table(bytes: &[u8]) -> bool {
    let object = digits(bytes).and_then(|(_, rest)| digits(rest));
    let object = object.is_some_and(|(_, rest)| rest.trim_ascii_start().starts_with(b"obj"));
    object || bytes.trim_ascii_start().starts_with(b"xref")
}

/// Reads the decimal number that follows white space, and returns what follows it.
fn digits(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit());
    let (number, rest) = bytes.split_at_checked(end.unwrap_or(bytes.len()))?;
    Some((str::from_utf8(number).ok()?.parse().ok()?, rest))
}

fn find_last(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).rposition(|window| window == word)
}

/// Checks the frame of a Mobipocket or KF8 book: a Palm database whose last record is the end mark.
fn mobi(view: View<'_>) -> Result<(), Stop> {
    let head = view.piece(0, 78)?;
    demand(head.get(60..68) == Some(b"BOOKMOBI"), "it is no MOBI")?;
    let records = u16::from_be_bytes(head.last_chunk().copied().unwrap_or_default());
    demand(records > 0, "it has no records")?;
    let mut table = BufReader::new(view.file); // The head's read ended where the table begins.
    let mut least = 78 + u64::from(records) * 8;
    for _ in 0..records {
        let mut entry = [0; 8];
        table.read_exact(&mut entry)?;
        let at = u64::from_be_bytes(entry) >> 32;
        demand(at >= least, "its record table is out of order")?;
        least = at;
    }
    let whole = least <= view.bytes.saturating_sub(4) && view.tail(4)? == b"\xe9\x8e\r\n";
    demand(whole, "its last record is cut off or missing")
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
