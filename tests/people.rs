//! A queue for several users, by number only: the owner, a front end in the shared group, a stranger, and root; and small
//! disks that can be filled.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{PROGRAM, Queue, make_executable};

pub(crate) const OWNER: u32 = 41_001;
pub(crate) const GROUP: u32 = 41_100;
const FRONT: u32 = 41_002;
const STRANGER: u32 = 41_003;

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    Owner,
    Front,
    Stranger,
}

/// What a call printed, and its code.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: i32,
}

impl Heard {
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Ends the test unless both streams together hold each of these words.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err.contains(word) || self.out.contains(word), "{word:?} is not in {self:?}");
        }
        self
    }
}

/// A queue whose state and cache directories belong to [`OWNER`] and [`GROUP`].
pub(crate) struct House {
    pub(crate) queue: Queue,
}

impl House {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test needs root for several users");
        let queue = Queue::new();
        let root = queue.path("");
        let (program, fake) = (queue.path("export-queue"), queue.path("fake"));
        fs::copy(PROGRAM, &program).expect("a copy of the program");
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/fake"), &fake).expect("a copy of the exporter");
        make_executable(&program);
        make_executable(&fake);
        let original = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/fake");
        queue.reconfigure(original, &fake.to_string_lossy());
        let house = Self { queue };
        house.give(&root, 0o755);
        house.open_up(&house.queue.path("config.toml"), 0o644);
        for (dir, mode) in [("state", 0o2770), ("cache", 0o2750)] {
            let dir = house.queue.path(dir);
            fs::create_dir(&dir).expect("a directory");
            house.give(&dir, mode);
        }
        house
    }

    /// Makes a path the owner's.
    pub(crate) fn give(&self, path: &Path, mode: u32) {
        chown(path, Some(OWNER), Some(GROUP)).expect("root may give away");
        self.open_up(path, mode);
    }

    #[expect(clippy::unused_self, reason = "said of the house")]
    pub(crate) fn open_up(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may set modes");
    }

    /// The program as somebody, with a umask, to be called.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, who: Who, umask: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("setpriv");
        let ids = |uid: u32| [format!("--reuid={uid}"), format!("--regid={uid}")];
        match who {
            Who::Root => command.arg("--clear-groups"),
            Who::Owner => command.args(ids(OWNER)).arg(format!("--groups={GROUP}")),
            Who::Front => command.args(ids(FRONT)).arg(format!("--groups={GROUP}")),
            Who::Stranger => command.args(ids(STRANGER)).arg("--clear-groups"),
        };
        command.args(["sh", "-c", "umask \"$0\"; exec \"$@\"", umask]);
        command.arg(self.queue.path("export-queue")).arg("--config").arg(self.queue.path("config.toml")).args(args);
        command.stdin(Stdio::null()).current_dir("/");
        command
    }

    /// Calls the program as somebody and waits for it.
    pub(crate) fn call<S: AsRef<OsStr>>(&self, who: Who, args: impl IntoIterator<Item = S>) -> Heard {
        self.call_with(who, "022", args)
    }

    pub(crate) fn call_with<S: AsRef<OsStr>>(&self, who: Who, umask: &str, args: impl IntoIterator<Item = S>) -> Heard {
        let output = self.command(who, umask, args).output().expect("setpriv can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let heard =
            Heard { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code().unwrap_or(-1) };
        assert!(heard.code != 101 && heard.code != 134, "it panicked: {heard:?}");
        heard
    }
}

/// A disk of a few megabytes; unmounted when it goes.
pub(crate) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Mounts an empty one at a directory that is made for it.
    pub(crate) fn mount(dir: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&dir).expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={size},mode=0755")).arg("tmpfs").arg(&dir);
        assert!(mount.status().expect("mount can be started").success(), "this test needs root to mount");
        Self { dir }
    }

    /// Lets nothing be written any more, or again.
    pub(crate) fn remount(&self, how: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o"]).arg(format!("remount,{how}")).arg(&self.dir);
        assert!(mount.status().expect("mount can be started").success());
    }

    /// Leaves no byte free; [`Self::empty`] undoes it.
    pub(crate) fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.dir.join("filling")).expect("a file");
        let error = loop {
            if let Err(error) = file.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(self.dir.join("filling")).expect("it was filled");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a failed test may leave processes that are ended only after this.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
    }
}
