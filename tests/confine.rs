//! Walls around exporters: what they keep out, that real converters work behind them, and that nothing runs without them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::converters::{Shop, assert_epub_title, assert_pdf};
use crate::harness::{PROGRAM, Process, Queue, Said, call, eventually, make_executable, text};
use crate::scripts::add_format;

/// The uid and gid of `www-data`.
const OWNER: u32 = 33;

/// Both walls.
const BOTH: &str = "no_network = true\nread_only = true";

/// Gives the queue to an ordinary user, whom root's calls become.
fn give_to_ordinary_user(queue: &Queue) {
    make_executable(&queue.path(""));
    for dir in ["state", "cache", "elsewhere"] {
        fs::create_dir_all(queue.path(dir)).expect("a directory");
        chown(queue.path(dir), Some(OWNER), Some(OWNER)).expect("only root can give the queue away: run as root");
    }
    chown(queue.path(""), Some(OWNER), Some(OWNER)).expect("root gives it away");
}

/// Tries to reach a listener and says in its file whether that went well.
fn add_caller(queue: &Queue, keys: &str, port: u16) {
    let body = format!(
        "if (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>$TMPDIR/why; then echo reached >$output; \
         else echo \"cut off: $(cat $TMPDIR/why)\" >$output; fi"
    );
    add_format(queue, "caller", keys, &body);
}

fn content(queue: &Queue, format: &str) -> String {
    let status = queue.status(format, "A");
    assert_eq!(status["state"], "ready", "{status}\n{}", queue.run(["log", "--format", format, "A"]).out);
    fs::read_to_string(text(&status["path"])).expect("the file")
}

#[test]
fn without_a_network_not_even_this_machine_is_reached() {
    for is_ordinary in [false, true] {
        for (keys, expected) in [("", "reached"), ("no_network = true", "cut off")] {
            let queue = Queue::new();
            if is_ordinary {
                give_to_ordinary_user(&queue);
            }
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.set_nonblocking(true).expect("a listener that does not wait");
            add_caller(&queue, keys, listener.local_addr().expect("its address").port());
            queue.request("caller", "A");
            queue.dispatch().code(0).silent();
            let said = content(&queue, "caller");
            assert!(said.starts_with(expected), "ordinary user: {is_ordinary}, {keys:?}: {said}");
            assert_eq!(listener.accept().is_ok(), expected == "reached", "{said}");
            queue.assert_quiet();
        }
    }
}

/// Tries every way to change what lies elsewhere; each one that went well is a line in its file.
const WRITER: &str = r#"exec 2>$TMPDIR/why
at=$SCRATCH/elsewhere
try() { ("$@") && echo "$1 $2" >>$output; }
put() { echo x >$2; }
cut() { : >$2; }
fill() { truncate -s 1 $2; }
echo began >$output; echo x >$HOME/a; echo x >$TMPDIR/b; mv $TMPDIR/b $XDG_RUNTIME_DIR/b; echo x >/dev/null
ln -s $at/old $HOME/link
cat $at/older >/dev/null && echo read >>$output
try put new $at/new
try cut old $at/old
try fill again $at/old
try put link $HOME/link
ln $at/older $HOME/linked && echo linked >>$output
mv $at/older $at/moved && echo moved >>$output
rm $at/old && echo removed >>$output
mkdir $at/dir && echo made >>$output
mkfifo $at/pipe && echo piped >>$output
[ -e $HOME/a ] && [ -e $XDG_RUNTIME_DIR/b ] && echo own >>$output"#;

#[test]
fn a_read_only_file_system_can_be_written_in_the_runs_own_directory_alone() {
    for is_ordinary in [false, true] {
        let queue = Queue::new();
        if is_ordinary {
            give_to_ordinary_user(&queue);
        }
        let at = queue.path("elsewhere");
        fs::create_dir_all(&at).expect("a directory");
        for name in ["old", "older"] {
            fs::write(at.join(name), "precious").expect("a file");
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o666)).expect("its mode");
            chown(at.join(name), Some(if is_ordinary { OWNER } else { 0 }), None).expect("root gives it away");
        }
        // The line that notes its start lies outside, and so cannot be written either.
        add_format(&queue, "walled", "read_only = true", WRITER);
        add_format(&queue, "free", "", WRITER);
        queue.request("walled", "A");
        queue.dispatch().code(0).silent();
        assert_eq!(content(&queue, "walled"), "began\nread\nown\n");
        assert_eq!(fs::read_dir(&at).expect("the directory").count(), 2);
        assert_eq!(fs::read_to_string(at.join("old")).expect("the file"), "precious");
        queue.request("free", "A");
        queue.dispatch().code(0).silent();
        let all = "began\nread\nput new\ncut old\nfill again\nput link\nlinked\nmoved\nremoved\nmade\npiped\nown\n";
        assert_eq!(content(&queue, "free"), all, "without the wall nothing is kept from it");
        queue.assert_quiet();
    }
}

/// Calls the hidden stage itself, as a worker does, with a pipe that it would complain through; its ending and complaint.
fn stage(args: &[&str]) -> (Said, String) {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let said = {
        let mut command = Command::new(PROGRAM);
        command.arg("confine").args(args).env_clear().env("PATH", "/usr/bin:/bin").stdin(writer);
        call(&mut command)
    };
    let mut complaint = String::new();
    std::io::Read::read_to_string(&mut reader, &mut complaint).expect("the complaint");
    (said, complaint)
}

#[test]
fn the_stage_becomes_its_program_and_leaves_nothing_of_itself() {
    let open = "readlink /proc/self/fd/0; ls /proc/self/fd | wc -l; cat /proc/$$/comm; exit 7";
    let (said, complaint) = stage(&["--no-network", "--writable", "/tmp", "--", "/bin/sh", "-c", open, "--", "work"]);
    assert_eq!((said.code, complaint.as_str()), (7, ""), "{said:?}");
    // Its three streams and what `ls` itself has open.
    assert_eq!(said.out, "/dev/null\n4\nsh\n");
    let (said, complaint) = stage(&["--no-network", "--", "/bin/cat", "/proc/self/net/dev"]);
    assert_eq!((said.code, complaint.as_str()), (0, ""), "{said:?}");
    assert_eq!(said.out.lines().skip(2).count(), 1, "nothing but a loopback: {}", said.out);
    let (said, complaint) = stage(&["--writable", "/", "--", "/bin/kill", "-l"]);
    assert_eq!((said.code, complaint.as_str()), (0, ""), "{said:?}");
}

#[test]
fn a_stage_that_fails_says_so_through_its_pipe_and_by_its_code() {
    let (said, complaint) = stage(&["--no-network", "--", "/no/such/program"]);
    assert_eq!(said.code, 69, "{said:?}");
    assert_eq!(complaint, "cannot execute /no/such/program: No such file or directory (os error 2)");
    let (said, complaint) = stage(&["--no-network", "--writable", "/"]);
    assert_eq!((said.code, said.out.as_str(), complaint.as_str()), (0, "", ""), "only tried: {said:?}");
}

#[test]
fn a_confined_program_that_cannot_be_executed_is_the_operators_failure() {
    let queue = Queue::new();
    add_format(&queue, "broken", BOTH, "whole");
    fs::write(queue.path("broken.sh"), "#!/no/such/interpreter\n").expect("a script");
    queue.request("broken", "A");
    assert_eq!(queue.dispatch().code, 69);
    let status = queue.status("broken", "A");
    assert_eq!(
        (&status["state"], &status["attempts"], &status["interruptions"]),
        (&"queued".into(), &0.into(), &0.into())
    );
    queue.assert_quiet();
}

/// A user namespace in which no network can be made.
const NO_NETWORKS: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 >/proc/sys/user/max_net_namespaces; exec \"$@\"",
    "sh",
];

/// A seccomp filter that answers `landlock_create_ruleset` (444) as a kernel without Landlock does: EOPNOTSUPP.
const NO_LANDLOCK: &[&str] = &[
    "python3",
    "-c",
    "import ctypes, os, struct, sys\n\
     rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x0005005f), (0x06, 0, 0, 0x7fff0000)]\n\
     code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))\n\
     class Program(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]\n\
     program = Program(len(rules), ctypes.addressof(code))\n\
     libc = ctypes.CDLL(None, use_errno=True)\n\
     assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0\n\
     os.execv(sys.argv[1], sys.argv[1:])",
];

/// The program, called on a machine that refuses something.
fn call_on(machine: &[&str], queue: &Queue, args: &[&str]) -> Said {
    let program = queue.command(args);
    let mut command = Command::new(machine[0]);
    command.args(&machine[1..]).arg(program.get_program()).args(program.get_args());
    call(command.stdin(Stdio::null()).current_dir("/"))
}

#[test]
fn where_the_kernel_refuses_a_wall_nothing_runs_and_the_operator_is_told() {
    let cases = [
        ("no_network = true", NO_NETWORKS, "the kernel does not cut the network: ", "user.max_user_namespaces"),
        ("read_only = true", NO_LANDLOCK, "the kernel does not make the file system read-only: ", "Linux 6.2"),
    ];
    for (keys, machine, what, mend) in cases {
        let queue = Queue::new();
        add_format(&queue, "walled", keys, "whole");
        queue.request("walled", "A");
        queue.request("ok", "B");
        let said = call_on(machine, &queue, &["dispatch", "--wait"]).code(78);
        assert!(said.err.contains(what) && said.err.contains(mend), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        // Others go on; this one waits, uncounted, and says for what.
        assert_eq!(queue.state("ok", "B"), "ready");
        let status = call_on(machine, &queue, &["--json", "status", "--format", "walled", "A"]).code(3).json();
        assert_eq!((&status["reason"], &status["attempts"]), (&"exporter_missing".into(), &0.into()), "{status}");
        let said = call_on(machine, &queue, &["explain", "--format", "walled", "A"]).code(3);
        assert!(said.out.contains(what), "{said:?}");
        let said = call_on(machine, &queue, &["check"]).code(78);
        let line =
            said.out.lines().find(|line| line.starts_with("fail  confinement: walled: ")).expect("a line of check");
        assert!(line.contains(what) && line.contains(mend), "{line}");
        assert_eq!(queue.scratch("STARTS"), ["B"], "it ran without its wall");
        queue.dispatch().code(0).silent();
        assert_eq!(queue.state("walled", "A"), "ready");
        queue.assert_quiet();
    }
}

#[test]
fn check_says_which_walls_are_in_force() {
    let queue = Queue::new();
    add_format(&queue, "walled", BOTH, "whole");
    let said = queue.run(["check"]).code(0);
    assert!(said.out.contains("ok    confinement: walled: no_network and read_only in force\n"), "{}", said.out);
    assert_eq!(said.out.matches("confinement").count(), 1, "{}", said.out);
}

#[test]
fn precheck_and_verify_stand_behind_the_same_walls() {
    let queue = Queue::new();
    let probe = queue.path("probe");
    fs::write(&probe, "#!/bin/sh\n! touch \"$SCRATCH/elsewhere\" 2>/dev/null\n").expect("a script");
    make_executable(&probe);
    let probe = probe.display();
    add_format(
        &queue,
        "walled",
        &format!("read_only = true\nprecheck = [\"{probe}\"]\nverify = [\"{probe}\"]"),
        "whole",
    );
    queue.request("walled", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(content(&queue, "walled"), "a good book: A\n");
    assert!(!queue.path("elsewhere").exists());
    queue.assert_quiet();
}

#[test]
fn what_limits_and_recovery_look_at_is_seen_behind_walls() {
    let queue = Queue::new();
    give_to_ordinary_user(&queue);
    let eat = "until [ $(cat /proc/$$/oom_score_adj) = 800 ]; do :; done\n\
               exec python3 -c 'import time; all = bytearray(300_000_000); time.sleep(600)'";
    add_format(&queue, "hungry", &format!("{BOTH}\nmax_memory = \"100MB\""), eat);
    queue.request("hungry", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.status("hungry", "A")["reason"], "out_of_memory");
    let leave = "(setsid sleep 600 &) ; touch $TMPDIR/up; sleep 600";
    add_format(&queue, "orphan", BOTH, leave);
    queue.request("orphan", "B");
    queue.run(["dispatch"]).code(0).silent();
    let sleepers = eventually("it runs with its child", || {
        let all = queue.exporters().into_iter().filter(|process| process.command.starts_with("sleep\0"));
        Some(all.collect::<Vec<_>>()).filter(|found| found.len() == 2)
    });
    queue.workers().iter().for_each(Process::slay);
    queue.run(["cancel", "--format", "orphan", "B"]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!(sleepers.iter().filter(|process| process.lives()).count(), 0);
    assert_eq!(queue.status("orphan", "B")["reason"], "cancelled");
    queue.assert_quiet();
}

/// Whoever recovers a run must know the stage for an exporter: else it would become one after its slot was given on.
#[test]
fn a_worker_that_dies_before_its_exporter_begins_leaves_none_that_begins_later() {
    let queue = Queue::new();
    add_format(&queue, "walled", "read_only = true", "whole");
    // Whoever would open a file under a lease waits, up to 45 s, until its holder gives way: so does `exec`.
    let hold = "import fcntl, signal, sys\n\
                signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                file = open(sys.argv[1])\n\
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                print('held', flush=True)\n\
                signal.pause()";
    let mut holder = Command::new("python3");
    holder.args(["-c", hold]).arg(queue.path("walled.sh")).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("python3");
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("its output"), &mut held).expect("the lease is had");
    queue.request("walled", "A");
    queue.run(["dispatch"]).code(0).silent();
    let is_stage = |command: &str| command.contains("\0confine\0") && command.contains("walled.sh");
    let stage =
        eventually("the stage is held", || queue.processes().into_iter().find(|process| is_stage(&process.command)));
    queue.workers().iter().for_each(Process::slay);
    let was_held = stage.lives();
    let said = queue.run(["dispatch"]);
    let outlived = stage.lives();
    holder.kill().expect("it is there");
    holder.wait().expect("it is waited for");
    said.code(0).silent();
    assert!(was_held && !outlived, "the stage outlived its run, and would become an exporter beside the next one");
    queue.await_state("walled", "A", "ready");
    queue.assert_quiet();
}

#[test]
fn pandoc_and_weasyprint_work_behind_both_walls() {
    let shop = walled_shop("weasyprint.toml", &["pandoc", "weasyprint", "qpdf", "poppler", "fonts"]);
    for (_, _, path) in shop.export(&["pdf"], &["Notes on Bread", "The Keeper's Pictures"]) {
        assert_pdf(&path, if path.to_string_lossy().contains("Bread") { "flour" } else { "keeper" });
    }
    shop.close();
    let shop = walled_shop("pandoc.toml", &["pandoc"]);
    for (_, title, path) in shop.export(&["epub"], &["Trains/Timetables"]) {
        assert_epub_title(&path, &title);
    }
    shop.close();
}

#[test]
fn chromium_and_calibre_work_behind_both_walls() {
    let shop = walled_shop("chromium.toml", &["pandoc", "chromium", "qpdf", "poppler", "fonts"]);
    for (_, _, path) in shop.export(&["pdf"], &["Notes on Bread"]) {
        assert_pdf(&path, "flour");
    }
    shop.close();
    let mut shop = walled_shop("calibre.toml", &["pandoc", "calibre", "qpdf", "poppler", "fonts"]);
    // As the example says.
    shop.set("EXPORT_QUEUE__FORMAT__PDF__ENV", "{ QTWEBENGINE_CHROMIUM_FLAGS = \"--disable-dev-shm-usage\" }");
    for (format, _, path) in shop.export(&["pdf", "mobi"], &["Notes on Bread"]) {
        assert!(Path::new(&path).exists());
        if format == "pdf" {
            assert_pdf(&path, "flour");
        }
    }
    shop.close();
}

/// A shipped configuration, behind both walls.
fn walled_shop(example: &str, converters: &[&str]) -> Shop {
    let mut shop = Shop::new(example, converters);
    shop.set("EXPORT_QUEUE__LIMITS__NO_NETWORK", "true");
    shop.set("EXPORT_QUEUE__LIMITS__READ_ONLY", "true");
    shop
}
