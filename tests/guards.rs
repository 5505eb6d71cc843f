//! What is refused, withstood or told before it can do harm.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use crate::harness::{Queue, eventually, make_executable, text};

/// A format whose command is a script of the test's own.
fn script(queue: &Queue, body: &str) -> String {
    let path = queue.path("script");
    fs::write(&path, format!("#!/bin/bash\noutput=$1\n{body}\n")).expect("a script");
    make_executable(&path);
    format!("[format.own]\nextension = \"txt\"\ncommand = [\"{}\", \"{{output}}\"]\n", path.display())
}

fn with_script(body: &str) -> Queue {
    let queue = Queue::new();
    let format = script(&queue, body);
    queue.configure(&format!("{}{format}", queue.base_config()));
    queue
}

#[test]
fn a_pipe_in_place_of_the_progress_file_blocks_nobody() {
    let queue = with_script("mkfifo \"$EXPORT_QUEUE_PROGRESS\"; echo $$ >\"$SCRATCH\"; sleep 600");
    queue.reconfigure(
        "[format.own]\n",
        &format!("[format.own]\nenv = {{ SCRATCH = \"{}\" }}\n", queue.path("PID").display()),
    );
    queue.reconfigure("timeout = \"60s\"", "timeout = \"1s\"");
    queue.request("own", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.status("own", "A")["reason"], "timed_out");
    queue.assert_quiet();
}

#[test]
fn progress_shows_in_status_while_the_exporter_runs() {
    let queue = with_script(
        "echo '0.42 chapter 7' >\"$EXPORT_QUEUE_PROGRESS\"; echo '0.5 cut' >>\"$EXPORT_QUEUE_PROGRESS\"; sleep 600",
    );
    queue.request("own", "A");
    queue.run(["dispatch"]).code(0).silent();
    let status = eventually("progress is told", || Some(queue.status("own", "A")).filter(|s| !s["progress"].is_null()));
    assert_eq!((text(&status["state"]), text(&status["progress"])), ("started".into(), "0.5 cut".into()));
    queue.run(["cancel", "--format", "own", "A"]).code(0);
    queue.await_state("own", "A", "failed_unknown");
    queue.assert_quiet();
}

#[test]
fn a_row_whose_name_is_not_its_keys_publishes_nothing_anywhere() {
    let queue = Queue::new();
    queue.request("ok", "A");
    fs::create_dir(queue.path("elsewhere")).expect("a directory");
    queue.sql("UPDATE jobs SET filename = '../../elsewhere/pwned.txt'");
    queue.dispatch().code(0).silent();
    assert_eq!(fs::read_dir(queue.path("elsewhere")).expect("the directory").count(), 0);
    assert_eq!(queue.sql("SELECT state, reason FROM jobs"), ["3|output_invalid"]);
    queue.sql("DELETE FROM jobs");
    queue.assert_quiet();
}

#[test]
fn links_laid_in_the_state_directory_lead_nowhere() {
    let queue = Queue::new();
    let precious = queue.path("precious");
    fs::write(&precious, "precious").expect("a file");
    fs::create_dir(queue.path("state")).expect("a directory");
    for name in ["worker.log", "findings.json", "walked", "suspects.json", "tick"] {
        symlink(&precious, queue.path("state").join(name)).expect("a link");
    }
    let before = fs::metadata(&precious).expect("the file").mtime_nsec();
    queue.request("ok", "A");
    assert_ne!(queue.dispatch().code, 0, "the tick's own file was replaced by a link, and that is said");
    fs::remove_file(queue.path("state/tick")).expect("the link");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "A"), "ready");
    assert_eq!(fs::read_to_string(&precious).expect("the file"), "precious");
    assert_eq!(fs::metadata(&precious).expect("the file").mtime_nsec(), before);
    queue.assert_quiet();
}

#[test]
fn the_state_directory_is_sticky_and_its_notes_are_the_owners_alone() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0);
    let mode = |name: &str| fs::metadata(queue.path(name)).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!(mode("state"), 0o3770);
    for private in ["state/slots", "state/logs", "cache/.work"] {
        assert_eq!(mode(private) & 0o777, 0o700, "{private}");
    }
    queue.assert_quiet();
}

/// The uid and gid of an ordinary user of every Debian system.
const GAMES: (u32, u32) = (5, 60);

/// Gives the whole directory to a user, with a group.
fn give(queue: &Queue, (uid, own): (u32, u32), gid: u32) {
    chown(queue.path(""), Some(uid), Some(own)).expect("root gives it away");
    for entry in ["config.toml", "books"] {
        chown(queue.path(entry), Some(uid), Some(own)).expect("root gives it away");
    }
    for dir in ["state", "cache"] {
        fs::create_dir(queue.path(dir)).expect("a directory");
        chown(queue.path(dir), Some(uid), Some(gid)).expect("root gives it away");
        fs::set_permissions(queue.path(dir), fs::Permissions::from_mode(0o2770)).expect("its mode");
    }
}

#[test]
fn an_owner_outside_the_queues_group_is_told_before_the_first_export() {
    let queue = Queue::new();
    give(&queue, GAMES, 33);
    for verb in [&["dispatch"][..], &["check"], &["init"], &["request", "A"]] {
        let said = queue.run(verb).code(78);
        assert!(format!("{}{}", said.out, said.err).contains("usermod --append --groups"), "{said:?}");
    }
    assert!(!queue.path("state/queue.db").exists());
}

#[test]
fn a_refused_adoption_changes_nothing() {
    let queue = Queue::new();
    queue.request("ok", "A");
    let id = fs::read_to_string(queue.path("state/queue.id")).expect("an id");
    fs::remove_dir_all(queue.path("cache")).expect("the cache goes");
    fs::create_dir(queue.path("cache")).expect("a directory");
    fs::write(queue.path("cache/thesis.odt"), "mine").expect("a foreign file");
    queue.run(["init", "--adopt"]).code(78);
    assert_eq!(queue.sql("SELECT value FROM meta WHERE name = 'queue_id'"), [id.trim()]);
    fs::remove_file(queue.path("cache/thesis.odt")).expect("the file goes");
    queue.run(["init", "--adopt"]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn a_link_on_the_way_to_the_state_directory_is_the_operators() {
    let queue = Queue::new();
    fs::create_dir(queue.path("disk")).expect("a directory");
    symlink(queue.path("disk"), queue.path("link")).expect("a link");
    queue.reconfigure("state_dir = \"state\"", "state_dir = \"link/state\"");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.run(["check"]).code(0);
}

#[test]
fn init_does_not_pretend_to_give_a_directory_away() {
    let queue = Queue::new();
    give(&queue, GAMES, GAMES.1);
    let said = queue.run(["init", "--user", "nobody"]).code(2);
    assert!(said.err.contains("belongs to games already"), "{said:?}");
    queue.run(["init", "--user", "games"]).code(0);
    queue.assert_quiet();
}

#[test]
fn what_is_not_there_fails_at_once_and_is_not_tried_again() {
    let queue = with_script("echo never >\"$output\"");
    let more = "precheck = [\"sh\", \"-c\", \"echo no such page; exit 66\"]\nbackoff = [\"1s\", \"1s\"]\ntransient_exit = [66]\n";
    queue.reconfigure("[format.own]\n", &format!("[format.own]\n{more}"));
    queue.request("own", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("own", "A");
    assert_eq!(
        (text(&status["reason"]), text(&status["detail"])),
        ("source_missing".into(), "precheck: exit 66: no such page".into())
    );
    assert_eq!(status["attempts"], 1);
    queue.reconfigure("exit 66", "exit 0");
    queue.run(["--exit-zero", "retry", "--format", "own", "A"]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("own", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn where_a_book_is_expected_nothing_else_is_written() {
    let queue = Queue::new();
    let said = queue.run(["fetch", "--output", "-", "A"]).code(6);
    assert_eq!(said.out, "");
    assert!(said.err.contains("absent"), "{said:?}");
}

#[test]
fn check_tells_a_wrong_configuration_in_a_line_of_its_report() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slotz = 2");
    let said = queue.run(["check"]).code(78);
    assert!(said.out.starts_with("fail  configuration: ") && said.out.contains("did you mean `slots`"), "{said:?}");
    assert_eq!(said.out.lines().count(), 1);
}

#[test]
fn a_database_that_cannot_be_used_is_never_passed_over() {
    let queue = Queue::new();
    let text = fs::read_to_string(queue.path("config.toml")).expect("the configuration");
    // Nobody listens there; a program without PostgreSQL does not even try.
    queue.configure(&format!("database = \"postgres://queue@127.0.0.1:1/exports\"\n{text}"));
    let code = if cfg!(feature = "postgres") { 75 } else { 78 };
    for verb in [&["request", "A"][..], &["dispatch"], &["check"]] {
        queue.run(verb).code(code);
    }
    assert!(!queue.path("state/queue.db").exists() && !queue.path("state/queue.id").exists());
}

#[test]
fn colour_is_for_people_who_want_it() {
    let queue = Queue::new();
    assert_eq!(
        queue.run(["--color=always", "status", "A"]).code(6).out,
        "\u{1b}[31mabsent\u{1b}[0m  A (en, default, ok)\n"
    );
    assert_eq!(queue.run(["status", "A"]).code(6).out, "absent  A (en, default, ok)\n");
}

#[test]
fn a_program_that_cannot_be_executed_is_the_operators_failure() {
    let queue = with_script("true");
    fs::write(queue.path("script"), "#!/no/such/interpreter\n").expect("a script");
    queue.request("own", "A");
    assert_eq!(queue.dispatch().code, 69);
    let status = queue.status("own", "A");
    assert_eq!(
        (text(&status["state"]), &status["attempts"], &status["interruptions"]),
        ("queued".into(), &0.into(), &0.into())
    );
    queue.assert_quiet();
}

#[test]
fn arguments_that_are_too_long_are_the_jobs_failure() {
    let queue = with_script("true");
    // The kernel takes 128 KiB in one argument.
    queue.reconfigure("\"{output}\"]\n", &format!("\"{{output}}\", \"{}\"]\n", "x".repeat(131_072)));
    queue.request("own", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("own", "A");
    assert_eq!(
        (text(&status["reason"]), text(&status["detail"])),
        ("exit_nonzero".into(), "exit 126 (the arguments are too long)".into())
    );
    queue.assert_quiet();
}

#[test]
fn a_browsers_socket_fits_below_the_default_cache_directory() {
    // The token in the path is as long as real ones are.
    let queue = with_script("printf '%s' \"$TMPDIR\" >\"$output\"");
    queue.request("own", "A");
    queue.dispatch().code(0).silent();
    let tmpdir = fs::read_to_string(text(&queue.status("own", "A")["path"])).expect("the file");
    let below = tmpdir.strip_prefix(&*queue.path("cache").to_string_lossy()).expect("it is in the cache").len();
    let socket = "/org.chromium.Chromium.XXXXXX/SingletonSocket".len();
    assert!("/var/cache/export-queue".len() + below + socket <= 107, "{tmpdir}");
    // The system's own library agrees on the limit.
    let bind = "import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])";
    let dir = tempfile::tempdir().expect("a directory");
    let long = dir.path().join("x".repeat(107 - dir.path().as_os_str().len() - 1));
    assert!(Command::new("python3").args(["-c", bind]).arg(&long).status().expect("python3").success());
}

#[test]
fn a_file_held_up_before_its_name_appears_is_promised_from_when_it_can_be_opened() {
    let mut queue = Queue::new();
    queue.reconfigure("dir = \"cache\"", "dir = \"cache\"\nmax_age = \"3s\"\nserve_grace = \"1s\"");
    queue.set("EXPORT_QUEUE_FAULT", "publish.before_lock=delay:2500");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready", "its date is as old as its check");
    queue.assert_quiet();
}
