//! The outside programs: where they are, how they are called, and what they said.
//!
//! A command is an argument list, never a shell line. Its environment is built from nothing: a search path, a UTF-8 locale,
//! private HOME, TMPDIR and XDG directories, the marker of the run, and what the configuration adds.

pub mod confine;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::config::{Config, Format, Limits};
use crate::exit::{Exit, Refusal, exit_of};
use crate::template::{Template, Values};

use self::confine::Complaint;

/// Where programs are looked for beyond what `PATH` names: cron's has neither `/usr/local/bin` nor the `sbin`s.
const STANDARD_PATH: &[&str] = &["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// What a log begins with that was cut back.
const CUT: &[u8] = b"[cut]\n";

/// How much of a log is read for its last lines, in bytes.
const TAIL_BYTES: u64 = 4096;

/// How much of them is kept in the row, in bytes.
const DETAIL_BYTES: usize = 2000;

/// How much of a line of progress is kept in the row, in letters.
const PROGRESS_LETTERS: usize = 200;

/// The search path for exporters: the caller's, then the standard directories that it lacks.
pub fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&given).filter(|dir| dir.is_absolute()).collect();
    for dir in STANDARD_PATH.iter().map(PathBuf::from) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    std::env::join_paths(dirs).unwrap_or(given)
}

/// The search path of one format: its own `env.PATH`, else the common one.
fn path_of(format: &Format) -> OsString {
    format.env.get("PATH").map_or_else(search_path, OsString::from)
}

/// Where the program of a command is, if it is installed.
pub fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    which::which_in(program, Some(path), "/").ok()
}

/// The programs that a format needs and that are not installed.
pub fn missing(format: &Format) -> Vec<String> {
    let path = path_of(format);
    let programs = [&format.command, &format.verify, &format.precheck, &format.fingerprint]
        .into_iter()
        .filter_map(|command| command.first());
    programs.filter(|program| find(program, &path).is_none()).cloned().collect()
}

/// What keeps the owner of the queue from making a format, a fault of the setup and of no book: a program that is not
/// installed (69), secrets that cannot be used, or walls that this machine cannot put up (78).
pub fn obstacle(format: &Format, limits: &Limits) -> Option<(Exit, String)> {
    let missing = missing(format);
    if !missing.is_empty() {
        return Some((Exit::ExporterMissing, format!("{} is not installed", missing.join(", "))));
    }
    let refused = format.env_file.as_ref().and_then(|file| read_env_file(file).err());
    let refused = refused.map(|error| (exit_of(&error), error.to_string()));
    refused.or_else(|| confine::obstacle(limits))
}

/// The formats that nothing keeps from being made, with their time limits.
pub fn available(config: &Config) -> Vec<(String, Duration)> {
    let formats = config.format.iter().map(|(name, format)| (name, format, config.format_limits(name)));
    let usable = formats.filter(|(_, format, limits)| obstacle(format, limits).is_none());
    usable.map(|(name, _, limits)| (name.clone(), limits.timeout.0)).collect()
}

/// Everything that one call of an exporter needs.
#[derive(Debug)]
pub struct Call<'a> {
    /// The format's configuration.
    pub format: &'a Format,
    /// The command to run: the format's own, or its `verify`.
    pub command: &'a [String],
    /// What the placeholders stand for.
    pub values: Values<'a>,
    /// Variables for the exporter beyond the standard ones.
    pub variables: Vec<(&'static str, OsString)>,
    /// The bounds of the run, its walls among them.
    pub limits: &'a Limits,
    /// The directory that stays writable behind walls.
    pub root: &'a Path,
    /// HOME.
    pub home: PathBuf,
    /// XDG_RUNTIME_DIR.
    pub runtime: PathBuf,
}

impl Call<'_> {
    /// The argument list after expansion.
    ///
    /// # Errors
    /// A placeholder that does not exist (the configuration was checked, so this does not happen).
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        let expand = |argument: &String| {
            let template = Template::parse(argument).map_err(|unknown| anyhow::anyhow!("{unknown}"))?;
            Ok(template.render(&self.values))
        };
        self.command.iter().map(expand).collect()
    }

    /// The command with its clean environment, empty standard input, and `log` for both streams; behind walls, and then with
    /// what will tell whether they stood, where the limits ask for some.
    ///
    /// # Errors
    /// The program is not installed (69), or `env_file` is not as it must be (78).
    pub fn build(&self, log: &File) -> Result<(Command, Option<Complaint>)> {
        let arguments = self.arguments()?;
        let (program, rest) = arguments.split_first().context("the command is empty")?;
        let path = path_of(self.format);
        let found =
            find(&program.to_string_lossy(), &path).ok_or_else(|| not_installed(&program.to_string_lossy(), &path))?;
        let (mut command, complaint) = confine::wrap(&found, self.limits, self.root).context("making a pipe")?;
        command.args(rest).env_clear().current_dir(self.values.workdir);
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        command.env("PATH", &path).env("LANG", "C.UTF-8").env("HOME", &self.home).env("TMPDIR", self.values.tmpdir);
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        if let Some(zone) = std::env::var_os("TZ") {
            command.env("TZ", zone);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.envs(&self.format.env);
        if let Some(file) = &self.format.env_file {
            command.envs(read_env_file(file)?);
        }
        Ok((command, complaint))
    }
}

/// The error for a program that is not installed.
fn not_installed(program: &str, path: &OsStr) -> anyhow::Error {
    let path = path.to_string_lossy();
    Refusal::with(Exit::ExporterMissing, format!("{program} is not installed (looked in {path})"))
}

/// Reads `NAME=VALUE` lines; the file must belong to this user and be closed to all others.
///
/// # Errors
/// It cannot be read, is open to others, or a line is no assignment (78).
pub fn read_env_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let at = path.display();
    let meta = fs::metadata(path).map_err(|error| Refusal::config(format!("env_file {at}: {error}")))?;
    if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Refusal::config(format!(
            "env_file {at} must belong to the user who runs exports and have mode 0600"
        )));
    }
    let text = fs::read_to_string(path).map_err(|error| Refusal::config(format!("env_file {at}: {error}")))?;
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let assignments = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    assignments
        .map(|(number, line)| {
            let (name, value) = line
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| Refusal::config(format!("env_file {at}, line {number}: NAME=VALUE is expected")))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

/// Opens a new log for an exporter to append to.
///
/// # Errors
/// It cannot be created.
pub fn create_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Cuts a log back to its last half once it is longer than `max` bytes; says how long it was.
///
/// # Errors
/// It cannot be read or written.
pub fn cut_log(log: &mut File, max: u64) -> io::Result<u64> {
    let bytes = log.metadata()?.len();
    if max == 0 || bytes <= max {
        return Ok(bytes);
    }
    let tail = read_tail(log, max / 2)?;
    log.set_len(0)?;
    log.write_all(CUT)?;
    log.write_all(&tail)?;
    Ok(bytes)
}

fn read_tail(log: &mut File, at_most: u64) -> io::Result<Vec<u8>> {
    let bytes = log.metadata()?.len();
    log.seek(SeekFrom::Start(bytes.saturating_sub(at_most)))?;
    let mut tail = Vec::new();
    log.take(at_most).read_to_end(&mut tail)?;
    Ok(tail)
}

/// What a `fingerprint` command said, hashed; `None` where it said more than was kept.
///
/// # Errors
/// The log cannot be read.
pub fn fingerprint(log: &Path) -> io::Result<Option<String>> {
    let said = fs::read(log)?;
    let hash = blake3::hash(&said).to_hex();
    Ok((!said.starts_with(CUT)).then(|| hash[..32].to_owned()))
}

/// The last lines of a log, made fit for a row: valid text, no control characters, one line.
pub fn last_words(log: &Path) -> String {
    let tail = File::open(log).and_then(|mut file| read_tail(&mut file, TAIL_BYTES)).unwrap_or_default();
    one_line(&String::from_utf8_lossy(&tail))
}

/// What an exporter last said of its progress: the last line of its file, which may grow line by line; empty when there is
/// none. Anything but a regular file says nothing, and no link is followed.
pub fn last_progress(path: &Path) -> String {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let is_regular = |file: &File| file.metadata().is_ok_and(|meta| meta.is_file());
    let tail = opened.ok().filter(is_regular).and_then(|mut file| read_tail(&mut file, TAIL_BYTES).ok());
    progress_line(&String::from_utf8_lossy(&tail.unwrap_or_default()))
}

/// The last line of a text that is not blank, without control characters, at most 200 letters.
pub fn progress_line(text: &str) -> String {
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    plain(line.trim()).chars().take(PROGRESS_LETTERS).collect()
}

/// The end of a text as one line without control characters, at most 2000 bytes; lines are joined by ` | `.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(|line| plain(line.trim())).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" | ");
    let mut start = joined.len().saturating_sub(DETAIL_BYTES);
    while !joined.is_char_boundary(start) {
        start += 1;
    }
    joined[start..].to_owned()
}

/// A text without control characters and without the marks that turn the direction of a line.
pub fn plain(text: &str) -> String {
    let is_hostile = |c: char| {
        c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_hostile(c) { '\u{fffd}' } else { c }).collect()
}

/// The one file that matches a `produces` pattern, whose last component may hold `*` and `?`.
///
/// # Errors
/// None, or more than one, matches (the inner error, in words), or the directory cannot be read.
pub fn produced(pattern: &Path) -> io::Result<Result<PathBuf, String>> {
    let (Some(dir), Some(name)) = (pattern.parent(), pattern.file_name().and_then(OsStr::to_str)) else {
        return Ok(Err(format!("{} names no file", pattern.display())));
    };
    let matcher = glob::Pattern::new(name).map_err(io::Error::other)?;
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err(format!("nothing matches {name}")));
        }
        Err(error) => return Err(error),
    };
    let matches = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| matcher.matches(name));
    let mut found: Vec<PathBuf> = entries.flatten().filter(matches).map(|entry| entry.path()).collect();
    Ok(match found.len() {
        0 => Err(format!("nothing matches {name}")),
        1 => Ok(found.remove(0)),
        several => Err(format!("{several} files match {name}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_grows_line_by_line_is_told_by_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        assert_eq!(last_progress(&path), "");
        let lines: Vec<String> = (0..2000).map(|page| format!("page {page} of 2000, Война и мир")).collect();
        fs::write(&path, lines.join("\n") + "\n\n").unwrap();
        assert_eq!(last_progress(&path), lines[1999]);
        fs::write(&path, b"caf\xe9").unwrap();
        assert_eq!(last_progress(&path), "caf\u{fffd}");
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(last_progress(&dir.path().join("link")), "");
    }

    #[test]
    fn last_words_are_one_clean_line() {
        assert_eq!(one_line("a\n\x1b[31mb\n\n c \n"), "a | \u{fffd}[31mb | c");
        assert!(one_line(&"x".repeat(10_000)).len() <= DETAIL_BYTES);
        assert!(one_line(&"é".repeat(3_000)).len() <= DETAIL_BYTES);
    }

    #[test]
    fn a_log_is_cut_back_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = create_log(&path).unwrap();
        log.write_all(&[b'x'; 1000]).unwrap();
        log.write_all(b"the end").unwrap();
        assert_eq!(cut_log(&mut log, 100).unwrap(), 1007);
        let left = fs::read_to_string(&path).unwrap();
        assert!(left.len() <= 100 && left.ends_with("the end"), "{left}");
    }

    #[test]
    fn exactly_one_product_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let pattern = dir.path().join("*.epub");
        assert!(produced(&pattern).unwrap().is_err());
        fs::write(dir.path().join("a.epub"), "a").unwrap();
        assert_eq!(produced(&pattern).unwrap().unwrap(), dir.path().join("a.epub"));
        fs::write(dir.path().join("b.epub"), "b").unwrap();
        assert!(produced(&pattern).unwrap().unwrap_err().contains("2 files"));
    }

    #[test]
    fn an_env_file_open_to_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        fs::write(&path, "# secrets\nTOKEN=a=b\n\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(read_env_file(&path).is_err());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(read_env_file(&path).unwrap().get("TOKEN").map(String::as_str), Some("a=b"));
    }
}
