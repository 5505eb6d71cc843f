//! What is shipped to copy from: it works as it stands, and says what it says it does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::converters::{EXAMPLES, Shop, copy_dir, heavy, need};
use crate::harness::{PROGRAM, Queue, call, eventually, make_executable};

/// The shipped configurations.
fn configurations() -> Vec<String> {
    let entries = fs::read_dir(EXAMPLES).expect("examples").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| Path::new(name).extension() == Some("toml".as_ref())).collect();
    names.sort();
    names
}

#[test]
fn every_shipped_configuration_is_sound() {
    let names = configurations();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(Path::new(EXAMPLES).join(&name)).args(["config", "show"]).stdin(Stdio::null());
        let said = call(&mut command).code(0);
        assert!(said.out.contains("[format.") && said.err.is_empty(), "{name}: {said:?}");
    }
}

#[test]
fn check_finds_no_fault_in_a_shipped_configuration() {
    let converters = ["pandoc", "weasyprint", "calibre", "chromium"];
    for name in configurations().iter().filter(|name| *name != "quickstart.toml") {
        let shop = Shop::new(name, &converters);
        let said = shop.run(["check"]).code(0);
        assert!(!said.out.lines().any(|line| line.starts_with("fail")), "{name}: {}", said.out);
        // A bare `{title}` as an argument, or a title in a path, is what these files are there to avoid.
        assert!(!said.out.contains("{title}"), "{name}: {}", said.out);
    }
}

#[test]
fn every_file_of_the_examples_stands_in_their_readme() {
    let readme = fs::read_to_string(Path::new(EXAMPLES).join("README.md")).expect("the README");
    for entry in fs::read_dir(EXAMPLES).expect("examples").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_named = readme.contains(&format!("`{name}`")) || readme.contains(&format!("`{name}/`"));
        assert!(is_named || name == "README.md", "{name} is not in examples/README.md");
    }
}

#[test]
fn the_quickstart_makes_valid_books_and_serves_them_from_the_cache_when_run_again() {
    need(&["pandoc", "weasyprint", "epubcheck", "qpdf", "fonts"]);
    let _turn = heavy();
    let demo = tempfile::tempdir().expect("a directory");
    // A blank, an apostrophe and an ampersand, as the name of a directory may have.
    let demo = demo.path().join("it's R&D here");
    let quickstart = || {
        let mut command = Command::new(format!("{EXAMPLES}/quickstart"));
        command.env("EXPORT_QUEUE_BIN", PROGRAM).env("EXPORT_QUEUE_DEMO_DIR", &demo);
        call(command.env("EXPORT_QUEUE__DEFAULTS__LANG", "xx").stdin(Stdio::null()).current_dir("/")).code(0)
    };
    let first = quickstart().out;
    assert!(first.contains("all ready and valid; 0 of them came from the cache"), "{first}");
    assert_eq!(first.matches("epubcheck: valid").count(), 5, "{first}");
    assert_eq!(first.matches("qpdf: valid").count(), 5, "{first}");
    let second = quickstart().out;
    assert!(second.contains("all ready and valid; 10 of them came from the cache"), "{second}");
}

#[test]
fn a_shipped_configuration_keeps_a_book_from_reading_this_machine() {
    let shop = Shop::new("pandoc.toml", &["pandoc"]);
    let book = "# One\n\n![inside](/etc/passwd) ![up](../../etc/passwd) ![file](file:///etc/passwd) \
                ![web](http://127.0.0.1:9/x.png) ![coded](%2e%2e/%2e%2e/etc/passwd)\n\n<img src=\"/etc/passwd\">\n";
    shop.write_book("Thief.md", book);
    let (_, _, path) = shop.export(&["epub"], &["Thief"]).remove(0);
    let mut archive = zip::ZipArchive::new(fs::File::open(path).expect("the file")).expect("an archive");
    for number in 0..archive.len() {
        let mut content = Vec::new();
        archive.by_index(number).expect("an entry").read_to_end(&mut content).expect("its content");
        assert!(!String::from_utf8_lossy(&content).contains("root:x:0:0"), "entry {number} is /etc/passwd");
    }
    let log = shop.run(["log", "Thief"]).code(0).out;
    assert!(log.contains("picture left out"), "{log}");
    shop.close();
}

/// With `--self-contained` pandoc packs whatever an attribute `src` names, on any element.
#[test]
fn no_attribute_of_a_book_reads_this_machine_or_calls_out() {
    let shop = Shop::new("weasyprint.toml", &["pandoc"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener that does not wait");
    let address = format!("http://{}/x.png", listener.local_addr().expect("its address"));
    let names = ["src", "data-src", "data-background-image", "poster", "href"];
    let mut book = String::from("% T\n% [author]{src=/etc/passwd}\n\n");
    for (name, aim) in
        names.iter().flat_map(|name| ["/etc/passwd", "file:///etc/passwd", &address].map(|aim| (name, aim)))
    {
        book.push_str(&format!(
            "# One {{{name}={aim}}}\n\n[a]{{{name}={aim}}} `b`{{{name}={aim}}} [c](#one){{{name}={aim}}} \
             <span {name}=\"{aim}\">d</span> ![e](images/lantern.png){{{name}={aim}}} ^[f [g]{{{name}={aim}}}]\n\n\
             ::: {{.section {name}={aim}}}\nh\n:::\n\n<div {name}=\"{aim}\">\ni\n</div>\n\n```{{{name}={aim}}}\nj\n```\n\n"
        ));
    }
    shop.write_book("Thief.md", &book);
    let (_, _, path) = shop.export(&["html"], &["Thief"]).remove(0);
    let page = fs::read_to_string(path).expect("text");
    // "root:x:0:0" as base64 has it at the beginning of a file.
    assert!(!page.contains("cm9vdDp4OjA6M"), "/etc/passwd is in the page");
    assert!(!page.contains("/etc/passwd") && !page.contains("127.0.0.1"), "{page}");
    assert!(page.contains("data:image/png;base64,"), "its own picture is there");
    assert!(listener.accept().is_err(), "it called out");
    shop.close();
}

#[test]
fn install_converters_lists_refuses_and_never_installs_for_others_than_root() {
    let dir = tempfile::tempdir().expect("a directory");
    make_executable(dir.path());
    let script = dir.path().join("install-converters");
    fs::copy(format!("{EXAMPLES}/install-converters"), &script).expect("a copy");
    let listed = call(Command::new(&script).args(["--list", "tests"])).code(0).out;
    assert!(listed.lines().count() >= 11, "{listed}");
    let states: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(states.iter().all(|state| ["here", "lacking"].contains(state)), "{listed}");
    let wrong = call(Command::new(&script).arg("emacs")).code(2);
    assert!(wrong.err.contains("no such name: emacs"), "{wrong:?}");
    // Without any program to be found, everything but the shell lacks.
    let tools = dir.path().join("tools");
    fs::create_dir(&tools).expect("a directory");
    for tool in ["id", "apt-get", "printf"] {
        fs::write(
            tools.join(tool),
            "#!/bin/sh\nif [ \"${0##*/}\" = id ]; then echo 65534; else echo installed >&2; exit 9; fi\n",
        )
        .expect("a script");
        make_executable(&tools.join(tool));
    }
    let mut nobody = Command::new("/bin/sh");
    nobody.arg(&script).args(["pandoc", "cron"]).env("PATH", &tools).uid(65534).gid(65534);
    let said = call(&mut nobody).code(69);
    assert!(said.err.contains("apt-get install -y --no-install-recommends pandoc cron"), "{said:?}");
}

#[test]
fn make_book_prints_the_same_book_each_time() {
    let book = |args: &[&str]| call(Command::new(format!("{EXAMPLES}/make-book")).args(args)).code(0).out;
    let first = book(&["30", "A Title"]);
    assert!(first.starts_with("% A Title\n") && first.matches("\n# Chapter ").count() == 3, "{first}");
    assert_eq!(first, book(&["30", "A Title"]));
    assert_ne!(call(Command::new(format!("{EXAMPLES}/make-book")).arg("many")).code, 0);
}

/// A web front end that listens; ended when dropped.
struct FrontEnd {
    child: Child,
    port: u16,
}

impl FrontEnd {
    /// Starts what `command` makes of a port.
    fn start(queue: &Queue, command: impl FnOnce(u16) -> Command) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let mut command = command(port);
        command.env("EXPORT_QUEUE_BIN", PROGRAM).env("EXPORT_QUEUE_CONFIG", queue.path("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let front_end = Self { child: command.spawn().expect("the front end starts"), port };
        eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        front_end
    }

    /// The status and the whole answer to a query.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, answer)
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        // It holds nothing that a softer end would save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whatever language a front end is written in, it tells busy from broken. `address` makes a path of title and format.
fn assert_front_end(queue: &Queue, front_end: &FrontEnd, address: fn(&str, &str) -> String) {
    let get = |title: &str, format: &str| front_end.get(&address(title, format));
    let (status, answer) = get("--version", "ok");
    assert_eq!(status, 202, "{answer}");
    assert!(answer.contains("Retry-After: ") && answer.contains("\"queued\""), "{answer}");
    let (status, answer) = get("B", "code1");
    assert_eq!(status, 202, "{answer}");
    queue.dispatch().code(0).silent();
    let (status, answer) = get("--version", "ok");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.ends_with("a good book: --version\n"), "{answer}");
    let (status, answer) = get("B", "code1");
    assert_eq!(status, 502, "{answer}");
    assert!(answer.contains("exit_nonzero") && !answer.contains(queue.path("").to_str().expect("a path")), "{answer}");
    assert_eq!(get("A", "nonsense").0, 400);
    assert_eq!(get("%0A", "ok").0, 400);
    queue.reconfigure("slots = 2", "slots = 2\nmax_queued = 1");
    queue.request("ok", "in the queue");
    let (status, answer) = get("one too many", "ok");
    assert_eq!(status, 503, "{answer}");
    queue.reconfigure("slots = 2", "slost = 2");
    let (status, answer) = get("C", "ok");
    assert_eq!(status, 500, "{answer}");
    assert!(!answer.contains("slost"), "readers see the configuration's fault: {answer}");
    queue.reconfigure("slost = 2", "slots = 2");
    queue.assert_quiet();
}

#[test]
fn the_front_end_in_python_tells_busy_from_broken() {
    let queue = Queue::new();
    let front_end = FrontEnd::start(&queue, |port| {
        let mut command = Command::new(format!("{EXAMPLES}/frontend.py"));
        command.arg(port.to_string());
        command
    });
    assert_front_end(&queue, &front_end, |title, format| format!("/{}.{format}", title.replace(' ', "%20")));
}

#[test]
fn the_front_end_in_php_tells_busy_from_broken() {
    need(&["php"]);
    let queue = Queue::new();
    let front_end = FrontEnd::start(&queue, |port| {
        let mut command = Command::new("php");
        command.args(["-S", &format!("127.0.0.1:{port}"), "-t", EXAMPLES]);
        command
    });
    let address =
        |title: &str, format: &str| format!("/frontend.php?title={}&format={format}", title.replace(' ', "+"));
    assert_front_end(&queue, &front_end, address);
}

#[test]
fn the_stand_in_for_a_wiki_behaves_as_its_configuration_says() {
    need(&["pandoc"]);
    let dir = tempfile::tempdir().expect("a directory");
    copy_dir(Path::new(EXAMPLES), &dir.path().join("examples"));
    let stand_in = |args: &[&str]| call(Command::new(dir.path().join("examples/ws-export-stand-in")).args(args));
    let out = dir.path().join("out");
    fs::create_dir(&out).expect("a directory");
    let path = format!("--path={}", out.display());
    stand_in(&["app:export", "--lang=en", "--title=Trains/Timetables", "--format=epub-3", &path]).code(0);
    assert!(out.join("Trains_Timetables.epub").exists());
    for wrong in [
        &["app:export", "--lang=en", "--title=No such page", &path][..],
        &["app:export", "--title=Notes on Bread"],
        &["x"],
    ] {
        stand_in(wrong).code(1);
    }
}
