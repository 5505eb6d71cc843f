//! Private work directories: one a run, in the cache's own file system, removed when the run ends for any reason.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Cache;

/// What the name of a directory ends in that was taken away from its run.
const TAKEN: &str = ".taken";

/// The private directory of one run: `home`, `tmp` and `run` for the exporter's own things, `in` for its input, `out` for
/// what it makes.
#[derive(Debug, Clone)]
pub struct WorkDir {
    root: PathBuf,
}

impl WorkDir {
    /// Where everything of the run lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The exporter's HOME.
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// The exporter's TMPDIR.
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// The exporter's XDG_RUNTIME_DIR.
    pub fn runtime(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The exporter's working directory, in which its output appears.
    pub fn out(&self) -> PathBuf {
        self.root.join("out")
    }

    /// Where the output is expected; the name keeps the real extension, since converters choose the format by it.
    pub fn output(&self, extension: &str) -> PathBuf {
        self.out().join(format!("export.{extension}"))
    }

    /// Where the private copy of the base lies.
    pub fn input(&self, extension: &str) -> PathBuf {
        self.root.join("in").join(format!("base.{extension}"))
    }

    /// Where the exporter writes its progress.
    pub fn progress(&self) -> PathBuf {
        self.root.join("progress")
    }

    fn parts(&self) -> [PathBuf; 5] {
        [self.home(), self.tmp(), self.runtime(), self.out(), self.root.join("in")]
    }

    /// Whether nothing is in it but what it was made with.
    fn is_as_made(&self) -> bool {
        let is_private =
            |dir: &Path| fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o777 == 0o700);
        let entries = |dir: &Path| fs::read_dir(dir).map_or(usize::MAX, Iterator::count);
        let parts = self.parts();
        is_private(&self.root)
            && entries(&self.root) == parts.len()
            && parts.iter().all(|dir| is_private(dir) && entries(dir) == 0)
    }

    /// What the run takes on the disk, in bytes of content.
    pub fn bytes(&self) -> u64 {
        let walk = walkdir::WalkDir::new(self.out()).follow_links(false);
        let sizes = walk.into_iter().flatten().filter_map(|entry| entry.metadata().ok());
        sizes.filter(std::fs::Metadata::is_file).map(|meta| meta.len()).sum()
    }
}

impl Cache {
    /// Makes the private directory of a run, unless the run before has handed it on.
    ///
    /// # Errors
    /// A directory cannot be made.
    pub fn make_work(&self, token: &str) -> io::Result<WorkDir> {
        let work = WorkDir { root: self.layout.work_of(token) };
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        match builder.create(&work.root) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(work),
            made => made?,
        }
        for dir in work.parts() {
            builder.create(dir)?;
        }
        Ok(work)
    }

    /// Gives the private directory of a run that is over to the next, if it is as it was made; else removes it. To make and
    /// remove six directories is most of what a short run costs the disk.
    ///
    /// # Errors
    /// It cannot be renamed, or something in it cannot be removed.
    pub fn hand_on_work(&self, token: &str, next: &str) -> io::Result<()> {
        let work = WorkDir { root: self.layout.work_of(token) };
        if work.is_as_made() { fs::rename(work.root, self.layout.work_of(next)) } else { self.remove_work(token) }
    }

    /// Removes the private directory of a run; missing is success.
    ///
    /// # Errors
    /// Something in it cannot be removed.
    pub fn remove_work(&self, token: &str) -> io::Result<()> {
        remove_tree(&self.layout.work_of(token))?;
        remove_tree(&self.taken(token))
    }

    /// Moves the private directory of a run away and deletes it: whatever its worker still does, it publishes nothing. Missing
    /// is success, and so is what was begun before.
    ///
    /// # Errors
    /// It cannot be moved, or something in it cannot be removed.
    pub fn take_away(&self, token: &str) -> io::Result<()> {
        let taken = self.taken(token);
        remove_tree(&taken)?;
        match fs::rename(self.layout.work_of(token), &taken) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => remove_tree(&taken),
        }
    }

    fn taken(&self, token: &str) -> PathBuf {
        self.layout.work_of(&format!("{token}{TAKEN}"))
    }

    /// The tokens whose private directories are there.
    ///
    /// # Errors
    /// The directory of work directories cannot be read.
    pub fn work_tokens(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.layout.work())?;
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| name.strip_suffix(TAKEN).map(str::to_owned).unwrap_or(name))
            .filter(|name| is_token(name))
            .collect())
    }

    /// Copies a base that was opened before its age was looked at; shares its blocks where the file system can.
    ///
    /// # Errors
    /// The copy cannot be made.
    pub fn copy_base(&self, base: &File, to: &Path) -> io::Result<()> {
        let mut copy = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        if rustix::fs::ioctl_ficlone(&copy, base).is_ok() {
            return Ok(());
        }
        let copied = io::copy(&mut &*base, &mut copy)?;
        if copied == base.metadata()?.size() { Ok(()) } else { Err(io::Error::other("the copy of the base is short")) }
    }
}

/// Deletes a directory with all that is in it; missing is success.
pub(super) fn remove_tree(root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(root);
            fs::remove_dir_all(root)
        }
        Err(error) => Err(error),
    }
}

/// Whether a name is a run's token.
pub(crate) fn is_token(name: &str) -> bool {
    name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

/// Gives back the permissions that an exporter took from its own directories.
fn open_up(root: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        // What cannot be opened up is reported by the removal that follows.
        let _ = fs::set_permissions(&dir, fs::Permissions::from_mode(0o700));
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        dirs.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
}
