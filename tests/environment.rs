//! Surroundings: what cron, a web server or a person's shell hand over or leave out changes nothing that is exported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{PROGRAM, Queue, Said, call, make_executable, text};
use crate::scripts::add_format;

/// The variables that cron hands over.
const CRON: &[(&str, &str)] =
    &[("HOME", "/root"), ("LOGNAME", "root"), ("SHELL", "/bin/sh"), ("PATH", "/usr/bin:/bin"), ("PWD", "/")];

/// Calls the program with these variables and no others.
fn bare(queue: &Queue, variables: &[(&str, &str)], args: &[&str]) -> Said {
    let mut command = queue.command(args);
    call(command.env_clear().envs(variables.iter().copied()))
}

/// What the exporter `env` saw, as name and value.
fn seen(queue: &Queue) -> Vec<(String, String)> {
    let lines = queue.scratch("ENVOUT");
    lines.iter().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

fn value_of(seen: &[(String, String)], name: &str) -> Option<String> {
    seen.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// A program of that name in that directory, which makes a good file.
fn install(dir: &Path, name: &str) {
    fs::create_dir_all(dir).expect("a directory");
    let path = dir.join(name);
    fs::write(&path, "#!/bin/sh\necho 'a good book' >\"$1\"\n").expect("a script");
    make_executable(&path);
}

fn with_format(queue: &Queue, format: &str) {
    queue.configure(&format!("{}{format}", queue.base_config()));
}

// CASES 21
#[test]
fn a_tick_in_crons_surroundings_exports_as_it_does_by_hand() {
    let queue = Queue::new();
    queue.request("ok", "A");
    bare(&queue, CRON, &["dispatch", "--wait"]).code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    // Not even a PATH or a HOME is needed.
    queue.request("env", "B");
    bare(&queue, &[], &["dispatch", "--wait"]).code(0).silent();
    assert_eq!(queue.state("env", "B"), "ready");
    let path = value_of(&seen(&queue), "PATH").expect("a PATH");
    assert!(path.split(':').any(|dir| dir == "/usr/local/bin"), "{path}");
    queue.assert_quiet();
}

// CASES 21
#[test]
fn a_converter_in_usr_local_bin_is_found_from_cron() {
    let queue = Queue::new();
    with_format(&queue, "[format.local]\nextension = \"txt\"\ncommand = [\"eq-test-converter\", \"{output}\"]\n");
    install(&queue.path("bin"), "eq-test-converter");
    queue.request("local", "A");
    let script = "mount --bind \"$1\" /usr/local/bin; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]).arg(queue.path("bin"));
    command.arg(PROGRAM).arg("--config").arg(queue.path("config.toml")).args(["dispatch", "--wait"]);
    command.env_clear().envs(CRON.iter().copied()).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    call(&mut command).code(0).silent();
    assert_eq!(queue.state("local", "A"), "ready");
    queue.assert_quiet();
}

// CASES 21
#[test]
fn a_converter_elsewhere_is_found_by_the_path_of_its_format_or_of_the_caller() {
    let queue = Queue::new();
    let dir = queue.path("opt/calibre");
    install(&dir, "eq-test-converter");
    let dir = dir.to_str().expect("a path").to_owned();
    let command = "extension = \"txt\"\ncommand = [\"eq-test-converter\", \"{output}\"]\n";
    with_format(
        &queue,
        &format!("[format.own]\nenv = {{ PATH = \"{dir}:/usr/bin:/bin\" }}\n{command}[format.callers]\n{command}"),
    );
    queue.request("own", "A");
    queue.request("callers", "A");
    let said = bare(&queue, CRON, &["dispatch", "--wait"]).code(69);
    assert_eq!(said.err, "export-queue: callers jobs wait in queue default: eq-test-converter is not installed\n");
    assert_eq!((queue.state("own", "A").as_str(), queue.state("callers", "A").as_str()), ("ready", "queued"));
    let path = format!("/usr/bin:/bin:{dir}");
    bare(&queue, &[("PATH", path.as_str())], &["dispatch", "--wait"]).code(0).silent();
    assert_eq!(queue.state("callers", "A"), "ready");
    queue.assert_quiet();
}

// CASES 21
#[test]
fn a_missing_converter_is_no_failure_of_the_book() {
    let queue = Queue::new();
    with_format(&queue, "[format.gone]\nextension = \"txt\"\ncommand = [\"eq-no-such-converter\", \"{output}\"]\n");
    queue.request("gone", "A");
    let said = bare(&queue, CRON, &["dispatch", "--wait"]).code(69);
    assert_eq!((said.out.as_str(), said.err.lines().count()), ("", 1), "{said:?}");
    let status = queue.status("gone", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"queued".into(), &"exporter_missing".into()));
    install(&queue.path("bin"), "eq-no-such-converter");
    let path = format!("/usr/bin:/bin:{}", queue.path("bin").display());
    bare(&queue, &[("PATH", path.as_str())], &["dispatch", "--wait"]).code(0).silent();
    assert_eq!((queue.state("gone", "A").as_str(), queue.scratch("STARTS").len()), ("ready", 0));
    queue.assert_quiet();
}

// CASES 21
#[test]
fn of_many_ticks_at_once_one_tells_a_standing_fault() {
    for _ in 0..10 {
        let queue = Queue::with("[format.gone]\ncommand = [\"no-such-converter\", \"{output}\"]\n");
        queue.request("gone", "A");
        let ticks: Vec<_> = (0..8).map(|_| queue.spawn(["dispatch"])).collect();
        let said: String = ticks.into_iter().map(|tick| tick.wait().code(69).err).collect();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(queue.dispatch().code(69).err.is_empty(), "it was told already");
    }
}

#[test]
fn a_tick_that_meets_another_which_tells_leaves_it_to_the_next() {
    let queue = Queue::with("[format.gone]\ncommand = [\"no-such-converter\", \"{output}\"]\n");
    queue.request("gone", "A");
    queue.run(["init", "--quiet"]).code(0);
    let notes = fs::File::create(queue.path("state/logs/findings.json")).expect("the notes");
    notes.try_lock().expect("nobody else has them");
    queue.dispatch().code(69).silent();
    drop(notes);
    assert_eq!(queue.dispatch().code(69).err.lines().count(), 1);
    queue.dispatch().code(69).silent();
}

#[test]
fn without_a_configuration_nothing_is_made_in_the_current_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    // A configuration here must not be taken by accident.
    fs::write(dir.path().join("config.toml"), "state_dir = \"state\"\n").expect("a file");
    let home = dir.path().join("home");
    fs::create_dir(&home).expect("a directory");
    let home = home.to_str().expect("a path").to_owned();
    let surroundings: [&[(&str, &str)]; 3] =
        [&[("HOME", home.as_str()), ("PATH", "/usr/bin:/bin")], &[("PATH", "/usr/bin:/bin")], &[]];
    for variables in surroundings {
        for verb in [&["dispatch"][..], &["sweep"], &["request", "A"], &["status", "A"], &["list"]] {
            let mut command = Command::new(PROGRAM);
            command.args(verb).env_clear().envs(variables.iter().copied()).current_dir(dir.path());
            let said = call(command.stdin(Stdio::null())).code(78);
            assert_eq!((said.out.as_str(), said.err.lines().count()), ("", 1), "{said:?}");
            assert!(said.err.contains("/etc/export-queue/config.toml"), "{}", said.err);
        }
    }
    let mut names: Vec<_> = fs::read_dir(dir.path()).expect("it").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.toml", "home"]);
}

// CASES 21
#[test]
fn relative_places_count_from_the_configuration_and_never_from_the_current_directory() {
    let queue = Queue::new();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let config = queue.path("config.toml").to_str().expect("a path").to_owned();
    let run = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(args).env_clear().envs(CRON.iter().copied()).env("EXPORT_QUEUE_CONFIG", &config);
        command.env("EXPORT_QUEUE__CACHE__DIR", "other-cache").current_dir(elsewhere.path());
        call(command.stdin(Stdio::null()))
    };
    run(&["request", "A"]).code(3);
    run(&["dispatch", "--wait"]).code(0).silent();
    let path = text(&run(&["--json", "status", "A"]).code(0).json()["path"]);
    assert!(path.starts_with(queue.path("other-cache").to_str().expect("a path")), "{path}");
    assert!(queue.path("state/queue.db").exists() && !queue.path("cache").exists());
    assert_eq!(fs::read_dir(elsewhere.path()).expect("a directory").count(), 0);
}

// CASES 22
#[test]
fn exporters_have_a_utf_8_locale_and_the_title_byte_for_byte_in_any_surroundings() {
    let queue = Queue::new();
    let title = "Fétis – Ö 剪燈餘話";
    let surroundings: [&[(&str, &str)]; 4] = [
        &[("PATH", "/usr/bin:/bin")],
        &[("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")],
        &[("PATH", "/usr/bin:/bin"), ("LANG", "POSIX"), ("LC_CTYPE", "POSIX")],
        &[("PATH", "/usr/bin:/bin"), ("LC_ALL", "tr_TR.UTF-8")],
    ];
    for (number, variables) in surroundings.iter().enumerate() {
        let title = format!("{title} {number}");
        for format in ["ascii", "args"] {
            bare(&queue, variables, &["request", "--format", format, "--", &title]).code(3);
        }
        bare(&queue, variables, &["dispatch", "--wait"]).code(0).silent();
        assert_eq!(queue.state("ascii", &title), "ready", "{variables:?}");
        assert_eq!(fs::read(queue.path("ARGS")).expect("what arrived"), title.as_bytes());
        for args in [&["status", "--format", "ascii", "--", &title][..], &["history"]] {
            assert!(bare(&queue, variables, args).code(0).out.contains(&title), "{variables:?}");
        }
    }
    queue.assert_quiet();
}

// CASES 22
#[test]
fn the_locale_of_a_format_can_be_set() {
    let queue = Queue::new();
    let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/fake");
    let scratch = queue.path("").display().to_string();
    queue.configure(&format!(
        "{}[format.posix]\nextension = \"txt\"\nenv = {{ SCRATCH = \"{scratch}\", LC_ALL = \"C\" }}\n\
         command = [\"{fake}\", \"ascii\", \"{{output}}\", \"--\", \"{{title}}\"]\n",
        queue.base_config()
    ));
    queue.request("posix", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("posix", "A");
    assert_eq!(
        (&status["state"], &status["detail"]),
        (&"failed_unknown".into(), &"exit 1: ascii codec cannot encode".into())
    );
    queue.assert_quiet();
}

#[test]
fn a_secret_of_the_caller_does_not_reach_the_exporter() {
    let mut queue = Queue::new();
    queue.set("AWS_SECRET_ACCESS_KEY", "hush-hush");
    queue.set("EXPORT_QUEUE_SECRET", "hush-hush");
    queue.set("LD_PRELOAD_SECRET", "hush-hush");
    queue.set("DISPLAY", ":99");
    queue.set("PYTHONPATH", "/hush-hush");
    queue.request("env", "A");
    queue.dispatch().code(0).silent();
    let seen = seen(&queue);
    assert!(!seen.iter().any(|(_, value)| value.contains("hush-hush")), "{seen:?}");
    // The shell that stands for the exporter adds PWD, SHLVL, OLDPWD and _.
    let known = [
        "PATH",
        "LANG",
        "HOME",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "TZ",
        "SCRATCH",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    let strange: Vec<_> = seen
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| !known.contains(name) && !name.starts_with("EXPORT_QUEUE_"))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
    queue.assert_quiet();
}

#[test]
fn an_exporter_is_told_what_it_makes_and_has_a_home_of_its_own() {
    let queue = Queue::new();
    let asked = queue.request("env", "A & B");
    queue.dispatch().code(0).silent();
    let seen = seen(&queue);
    let expected = [
        ("EXPORT_QUEUE_TITLE", "A & B"),
        ("EXPORT_QUEUE_LANG", "en"),
        ("EXPORT_QUEUE_FONT", "default"),
        ("EXPORT_QUEUE_FORMAT", "env"),
        ("EXPORT_QUEUE_ATTEMPT", "1"),
        ("EXPORT_QUEUE_JOB_ID", &asked["id"].to_string()),
        ("LANG", "C.UTF-8"),
    ];
    for (name, value) in expected {
        assert_eq!(value_of(&seen, name).as_deref(), Some(value), "{name}");
    }
    let work = queue.path("cache/.work").to_str().expect("a path").to_owned();
    for name in ["HOME", "TMPDIR", "EXPORT_QUEUE_OUTPUT", "EXPORT_QUEUE_PROGRESS", "XDG_RUNTIME_DIR"] {
        let value = value_of(&seen, name).unwrap_or_default();
        assert!(value.starts_with(&work), "{name} is {value}");
    }
    assert!(value_of(&seen, "EXPORT_QUEUE_RUN").is_some_and(|token| token.len() >= 16));
    queue.assert_quiet();
}

#[test]
fn secrets_of_a_format_reach_its_exporter_and_are_not_shown() {
    let queue = Queue::new();
    let secrets = queue.path("secrets");
    fs::write(&secrets, "# for the converter\nTOKEN=hush=hush\n\nSECOND=sesame\n").expect("a file");
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).expect("its mode");
    let line = format!("[format.env]\nenv_file = \"{}\"\n", secrets.display());
    queue.reconfigure("[format.env]\n", &line);
    queue.request("env", "A");
    queue.dispatch().code(0).silent();
    let seen = seen(&queue);
    assert_eq!(value_of(&seen, "TOKEN").as_deref(), Some("hush=hush"));
    assert_eq!(value_of(&seen, "SECOND").as_deref(), Some("sesame"));
    for args in [&["config", "show"][..], &["config", "show", "--origin"], &["--json", "config", "show"], &["check"]] {
        let said = queue.run(args).code(0);
        assert!(!said.out.contains("hush") && !said.out.contains("sesame"), "{}", said.out);
        assert!(said.out.contains("secrets"), "the path itself is no secret: {}", said.out);
    }
    queue.assert_quiet();
}

#[test]
fn a_secrets_file_that_others_can_read_is_refused_as_a_fault_of_the_setup() {
    let queue = Queue::new();
    let secrets = queue.path("secrets");
    fs::write(&secrets, "TOKEN=hush-hush\n").expect("a file");
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o644)).expect("its mode");
    queue.reconfigure("[format.env]\n", &format!("[format.env]\nenv_file = \"{}\"\n", secrets.display()));
    let check = queue.run(["check"]).code(78);
    assert!(check.out.contains("fail  env_file: ") && check.out.contains("0600"), "{}", check.out);
    queue.request("env", "A");
    for _ in 0..5 {
        queue.dispatch().code(78);
    }
    let status = queue.status("env", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"queued".into(), &"exporter_missing".into()));
    assert_eq!((&status["attempts"], &status["interruptions"]), (&0.into(), &0.into()), "it is not the book's fault");
    let explained = queue.run(["explain", "--format", "env", "A"]).code(3).out;
    assert!(explained.contains("secrets must belong to") && explained.contains("0600"), "{explained}");
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o600)).expect("its mode");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("env", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn every_command_works_without_home_path_or_terminal() {
    let queue = Queue::new();
    queue.request("ok", "A");
    bare(&queue, &[], &["dispatch", "--wait"]).code(0).silent();
    for verb in
        [&["status", "A"][..], &["request", "A"], &["explain", "A"], &["list"], &["queues"], &["history"], &["check"]]
    {
        let said = bare(&queue, &[], verb).code(0);
        assert!(!said.err.contains("panicked"), "{said:?}");
    }
    bare(&queue, &[], &["sweep"]).code(0);
    bare(&queue, &[], &["config", "show"]).code(0);
    bare(&queue, &[], &["fetch", "A", "--output", "-"]).code(0);
    queue.assert_quiet();
}

#[test]
fn no_locale_changes_what_is_printed() {
    let mut queue = Queue::new();
    let title = "Ötzi İstanbul 剪燈餘話";
    queue.request("ok", title);
    queue.dispatch().code(0).silent();
    let mut printed = Vec::new();
    for locale in ["C", "POSIX", "C.UTF-8", "tr_TR.UTF-8", "xx_YY.nonsense", ""] {
        queue.set("LC_ALL", locale);
        let said = queue.run(["status", "--", title]).code(0);
        assert!(said.err.is_empty());
        printed.push(said.out);
        printed.push(queue.run(["status", "--", title]).code(0).out);
    }
    assert!(printed[0].contains(title), "{}", printed[0]);
    assert!(printed.iter().all(|line| *line == printed[0]), "{printed:?}");
    queue.assert_quiet();
}

#[test]
fn no_run_finds_anything_of_the_run_before() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    let body = "note SEEN \"$(ls -A \"$HOME\" \"$TMPDIR\" \"$XDG_RUNTIME_DIR\" . ../in .. | grep -v / | tr '\\n' ' ')\"\n\
                note SEEN \"$(stat -c '%a %U' \"$HOME\" \"$TMPDIR\" \"$XDG_RUNTIME_DIR\" . ../in .. | tr '\\n' ' ')\"\n\
                case $title in\n\
                home) touch \"$HOME/litter\" ;;\n\
                deep) mkdir -p \"$TMPDIR/a/b\" ;;\n\
                here) touch litter ;;\n\
                beside) touch ../beside ;;\n\
                less) rmdir \"$XDG_RUNTIME_DIR\" ;;\n\
                closed) chmod 500 \"$HOME\" ;;\n\
                open) chmod 777 .. ;;\n\
                link) rmdir \"$TMPDIR\"; ln -s / \"$TMPDIR\" ;;\n\
                esac\nwhole";
    add_format(&queue, "look", "", body);
    let titles = ["clean", "home", "deep", "here", "beside", "less", "closed", "open", "link", "last", "clean too"];
    for title in titles {
        queue.request("look", title);
    }
    queue.dispatch().code(0).silent();
    let seen = queue.scratch("SEEN");
    assert_eq!(seen.len(), 2 * titles.len(), "{seen:?}");
    assert!(seen.chunks(2).all(|run| run == &seen[..2]), "{seen:#?}");
    queue.assert_quiet();
}
