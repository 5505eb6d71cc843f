//! Real converters, called through the configurations that are shipped, as an ordinary user owns them on a server.
//!
//! A [`Shop`] is a machine in small: `/etc/export-queue` holds a file of `examples/` as it is, `/srv/books` the books, both in a
//! mount namespace of its own, so that nothing is written outside the test's directory. The queue belongs to `www-data`, and
//! root calls the program, which becomes that user. What comes out is looked at by somebody else's program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::harness::{PROGRAM, Queue, Said, call, eventually, make_executable, now, text};

/// The examples of this checkout.
pub(crate) const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// The user who owns the queue: `www-data`.
const OWNER: u32 = 33;

/// The books that are shipped, by title.
const BOOKS: &[&str] = &["Notes on Bread", "The Keeper's Pictures", "Trains/Timetables", "নদী 河 نهر נהר река"];

/// Titles that are options of one of the converters, and the names of their sources.
const OPTIONS: &[(&str, &str)] = &[
    ("--version", "%2D-version.md"),
    ("-o /tmp/x", "%2Do %2Ftmp%2Fx.md"),
    ("--print-to-pdf=/x", "%2D-print-to-pdf=%2Fx.md"),
];

/// Makes the machine: mounts, then the program. Its own arguments are the directory and the program.
const MACHINE: &str = r#"
mount -t overlay -o lowerdir="$1/etc":/etc overlay /etc
mount --bind "$1/srv" /srv
mount --bind "$2" /srv/export-queue
shift 2
exec "$@""#;

/// Held by a test that keeps both cores busy, so that two of them do not starve the others.
pub(crate) fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::new(());
    // A test that failed while it held the lock left nothing behind it that matters here.
    HEAVY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails the test where a converter is missing.
#[track_caller]
pub(crate) fn need(names: &[&str]) {
    let said = call(Command::new(format!("{EXAMPLES}/install-converters")).arg("--list").args(names)).code(0);
    let lacking: Vec<&str> = said.out.lines().filter(|line| line.contains(" lacking ")).collect();
    assert!(lacking.is_empty(), "run `examples/install-converters tests` first: {lacking:?}");
}

/// Copies a directory, readable for all.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_dir(&source, &target);
        } else {
            fs::copy(&source, &target).expect("a copy");
        }
    }
}

/// A machine in small with one shipped configuration.
pub(crate) struct Shop {
    queue: Queue,
    env: BTreeMap<String, String>,
    _turn: MutexGuard<'static, ()>,
}

impl Shop {
    /// With this file of `examples/` as its configuration, after these converters were found.
    #[track_caller]
    pub(crate) fn new(example: &str, converters: &[&str]) -> Self {
        need(converters);
        let turn = heavy();
        let queue = Queue::new();
        let examples = Path::new(EXAMPLES);
        make_executable(&queue.path(""));
        copy_dir(examples, &queue.path("srv/ws-export/examples"));
        copy_dir(&examples.join("books"), &queue.path("srv/books"));
        fs::create_dir_all(queue.path("srv/ws-export/bin")).expect("a directory");
        symlink("../examples/ws-export-stand-in", queue.path("srv/ws-export/bin/console")).expect("a link");
        fs::write(queue.path("srv/export-queue"), "").expect("a place for the program");
        let etc = queue.path("etc/export-queue");
        fs::create_dir_all(&etc).expect("a directory");
        fs::copy(examples.join(example), etc.join("config.toml")).expect("the configuration");
        for file in ["book.css", "inside-only.lua"] {
            fs::copy(examples.join(file), etc.join(file)).expect("a copy");
        }
        let mut shop = Self { queue, env: BTreeMap::new(), _turn: turn };
        for (variable, dir) in [("EXPORT_QUEUE__STATE_DIR", "state"), ("EXPORT_QUEUE__CACHE__DIR", "cache")] {
            let path = shop.queue.path(dir);
            fs::create_dir(&path).expect("a directory");
            chown(&path, Some(OWNER), Some(OWNER)).expect("only root can give the queue to www-data: run as root");
            shop.set(variable, path.to_str().expect("a path"));
        }
        for (title, name) in OPTIONS {
            shop.write_book(name, &format!("# One\n\nA book that is called {title}.\n\n# Two\n\nIts end.\n"));
        }
        shop
    }

    /// Sets a variable for all later calls.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn write_book(&self, name: &str, content: &str) {
        for dir in ["srv/books", "srv/ws-export/examples/books"] {
            fs::write(self.queue.path(dir).join(name), content).expect("a book");
        }
    }

    /// Calls the program on this machine, with no more in its environment than cron would give it.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", MACHINE, "machine"]);
        command.arg(self.queue.path("")).arg(PROGRAM).arg("/srv/export-queue");
        command.args(["--config", "/etc/export-queue/config.toml"]).args(args);
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin").env("HOME", "/root").envs(&self.env);
        call(command.stdin(Stdio::null()).current_dir("/"))
    }

    fn request(&self, format: &str, title: &str) {
        self.run(["request", "--format", format, "--", title]).code(3);
    }

    fn status(&self, format: &str, title: &str) -> Value {
        self.run(["--json", "--exit-zero", "status", "--format", format, "--", title]).code(0).json()
    }

    fn dispatch(&self) {
        self.run(["dispatch", "--wait"]).code(0).silent();
    }

    /// The path of an export that must be ready; else the story of its failure.
    #[track_caller]
    fn ready(&self, format: &str, title: &str) -> PathBuf {
        let status = self.status(format, title);
        assert_eq!(status["state"], "ready", "{status}\n{}", self.run(["log", "--format", format, "--", title]).out);
        PathBuf::from(text(&status["path"]))
    }

    /// Asks for all titles in all formats, has them made, and gives back their paths.
    #[track_caller]
    pub(crate) fn export(&self, formats: &[&str], titles: &[&str]) -> Vec<(String, String, PathBuf)> {
        let pairs = titles.iter().flat_map(|title| formats.iter().map(move |format| (*format, *title)));
        let pairs: Vec<(&str, &str)> = pairs.collect();
        for (format, title) in &pairs {
            self.request(format, title);
        }
        self.dispatch();
        let found =
            |(format, title): &(&str, &str)| ((*format).to_owned(), (*title).to_owned(), self.ready(format, title));
        pairs.iter().map(found).collect()
    }

    /// Nothing is left, and nothing appeared where the titles aimed.
    #[track_caller]
    pub(crate) fn close(self) {
        self.queue.assert_quiet();
        for aim in ["/x", "/tmp/x", "/x.pdf"] {
            assert!(!Path::new(aim).exists(), "{aim} was written");
        }
        let uid = |path: &PathBuf| std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).expect("a file"));
        assert!(self.queue.published().iter().all(|path| uid(path) == OWNER), "a file belongs to somebody else");
    }
}

fn option_titles() -> Vec<&'static str> {
    OPTIONS.iter().map(|(title, _)| *title).collect()
}

#[track_caller]
fn assert_epub(path: &Path, title: &str) {
    call(Command::new("java").args(["-jar", "/usr/share/java/epubcheck.jar", "-q"]).arg(path)).code(0);
    assert_epub_title(path, title);
}

/// The book itself says what it is called.
#[track_caller]
pub(crate) fn assert_epub_title(path: &Path, title: &str) {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).expect("the file")).expect("an archive");
    let names: Vec<String> = archive.file_names().map(|name| name.expect("a name").into_owned()).collect();
    let is_package = |name: &&String| Path::new(name).extension() == Some("opf".as_ref());
    let name = names.iter().find(is_package).expect("a package document");
    let mut package = String::new();
    archive.by_name(name).expect("it").read_to_string(&mut package).expect("text");
    let written = title.replace('&', "&amp;").replace('<', "&lt;");
    let is_title = |quote: &str| package.contains(&format!(">{}</dc:title>", written.replace('\'', quote)));
    assert!(["'", "’", "&#39;"].into_iter().any(is_title), "{title:?} is not the title in {package}");
}

/// The file is a whole PDF with text in it.
#[track_caller]
pub(crate) fn assert_pdf(path: &Path, word: &str) {
    call(Command::new("qpdf").args(["--check", "--"]).arg(path)).code(0);
    let said = call(Command::new("pdftotext").args(["-enc", "UTF-8", "--"]).arg(path).arg("-")).code(0);
    assert!(said.out.contains(word), "{word:?} is not in {}", said.out);
}

/// The file is a MOBI or AZW3 of that title.
#[track_caller]
fn assert_mobi(path: &Path, title: &str) {
    let content = fs::read(path).expect("the file");
    assert_eq!(&content[60..68], b"BOOKMOBI");
    let said = call(Command::new("ebook-meta").arg(path).env("LANG", "C.UTF-8")).code(0);
    let line = said.out.lines().find(|line| line.starts_with("Title ")).expect("a title").to_owned();
    assert!(line.ends_with(&format!(": {title}")), "{line}");
}

/// A word that stands in a book.
fn word_of(title: &str) -> &str {
    match title {
        "Notes on Bread" => "flour",
        "The Keeper's Pictures" => "keeper",
        "Trains/Timetables" => "train",
        "নদী 河 نهر נהר река" => "河",
        _ => "A book that is called",
    }
}

#[test]
fn pandoc_makes_epubs_of_all_books_that_epubcheck_finds_valid() {
    let shop = Shop::new("pandoc.toml", &["pandoc", "epubcheck"]);
    for (_, title, path) in shop.export(&["epub"], BOOKS) {
        assert_epub(&path, &title);
    }
    shop.close();
}

#[test]
fn titles_that_are_options_stay_titles_for_pandoc() {
    let shop = Shop::new("pandoc.toml", &["pandoc", "epubcheck"]);
    for (_, title, path) in shop.export(&["epub"], &option_titles()) {
        assert_epub_title(&path, &title);
    }
    shop.close();
}

#[test]
fn weasyprint_makes_pdfs_of_any_script_and_title_from_one_base() {
    let shop = Shop::new("weasyprint.toml", &["pandoc", "weasyprint", "qpdf", "poppler", "fonts"]);
    let titles = [BOOKS, &option_titles()].concat();
    for (_, title, path) in shop.export(&["pdf"], &titles) {
        assert_pdf(&path, word_of(&title));
    }
    let html = shop.ready("html", BOOKS[3]);
    assert!(fs::read_to_string(html).expect("text").contains("নদী"));
    shop.close();
}

#[test]
fn chromium_makes_pdfs_of_any_script_and_title_as_an_ordinary_user() {
    let shop = Shop::new("chromium.toml", &["pandoc", "chromium", "qpdf", "poppler", "fonts"]);
    let titles = [&BOOKS[2..], &option_titles()].concat();
    for (_, title, path) in shop.export(&["pdf"], &titles) {
        assert_pdf(&path, word_of(&title));
    }
    shop.close();
}

// CASES 22: calibre is Python, which cron's missing locale once made ASCII.
#[test]
fn calibre_makes_three_formats_of_one_epub_in_any_locale() {
    let mut shop = Shop::new("calibre.toml", &["pandoc", "calibre", "epubcheck", "qpdf", "poppler", "fonts"]);
    shop.set("LC_ALL", "C");
    let title = BOOKS[3];
    for (format, title, path) in shop.export(&["pdf", "mobi", "azw3"], &[title]) {
        match format.as_str() {
            "pdf" => assert_pdf(&path, "河"),
            _ => assert_mobi(&path, &title),
        }
    }
    assert_epub(&shop.ready("epub", title), title);
    let made = shop.queue.sql("SELECT format FROM runs WHERE outcome = 'ready' ORDER BY format");
    assert_eq!(made.iter().filter(|format| *format == "epub").count(), 1, "{made:?}");
    shop.close();
}

#[test]
fn titles_that_are_options_stay_titles_for_calibre() {
    let shop = Shop::new("calibre.toml", &["pandoc", "calibre", "qpdf", "poppler", "fonts"]);
    for (_, title, path) in shop.export(&["azw3", "mobi"], &[&option_titles()[..], &[BOOKS[2]]].concat()) {
        assert_mobi(&path, &title);
    }
    for (_, _, path) in shop.export(&["pdf"], &["--version"]) {
        assert_pdf(&path, "A book that is called");
    }
    shop.close();
}

#[test]
fn ws_export_by_its_command_line_names_its_own_file_and_it_is_found() {
    let shop = Shop::new("ws-export.toml", &["pandoc", "calibre", "epubcheck", "qpdf", "poppler", "fonts"]);
    let titles = [&BOOKS[2..], &option_titles()].concat();
    for (_, title, path) in shop.export(&["epub-3"], &titles) {
        assert_epub_title(&path, &title);
    }
    // Two spellings, one export; a page that is missing is told as such and not tried again.
    assert!(
        shop.ready("epub", "Trains/Timetables")
            .ends_with(shop.ready("epub", "_Trains/Timetables_").file_name().expect("a name"))
    );
    for (_, _, path) in shop.export(&["pdf-a4"], &["Trains/Timetables"]) {
        assert_pdf(&path, "train");
    }
    shop.request("epub", "No such page");
    shop.dispatch();
    let status = shop.status("epub", "No such page");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &"exit_nonzero".into()));
    assert!(text(&status["detail"]).contains("was not found on en.wikisource.org"), "{status}");
    shop.close();
}

#[test]
fn a_busy_wiki_is_asked_again_later() {
    let shop = Shop::new("ws-export.toml", &["pandoc"]);
    shop.request("epub", "Busy page");
    shop.run(["dispatch"]).code(0).silent();
    let status = eventually("it waits for its next try", || {
        let status = shop.status("epub", "Busy page");
        (status["reason"] == "backing_off").then_some(status)
    });
    assert_eq!((&status["state"], &status["attempts"]), (&"queued".into(), &1.into()));
    shop.close();
}

/// The stand-in for a wiki's exporter, listening; ended when dropped.
struct Wiki(Child);

impl Wiki {
    fn start(shop: &Shop) -> (Self, u16) {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let examples = shop.queue.path("srv/ws-export/examples");
        let mut command = Command::new(examples.join("ws-export-stand-in"));
        command.args(["serve", &port.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
        let wiki = Self(command.spawn().expect("the stand-in starts"));
        eventually("the stand-in listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        (wiki, port)
    }
}

impl Drop for Wiki {
    fn drop(&mut self) {
        // It holds nothing that a softer end would save.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ws_export_by_http_gives_books_and_an_error_page_is_no_book() {
    let shop = Shop::new("ws-export-http.toml", &["pandoc", "epubcheck"]);
    let (wiki, port) = Wiki::start(&shop);
    let config = shop.queue.path("etc/export-queue/config.toml");
    let shipped = fs::read_to_string(&config).expect("the configuration");
    let address = format!("http://127.0.0.1:{port}/");
    assert!(shipped.contains("http://127.0.0.1:8888/"));
    fs::write(&config, shipped.replace("http://127.0.0.1:8888/", &address)).expect("the configuration");
    let titles = [&BOOKS[2..], &option_titles(), &["Notes on Bread"]].concat();
    for (_, title, path) in shop.export(&["epub"], &titles) {
        assert_epub_title(&path, &title);
    }
    assert_epub(&shop.ready("epub", BOOKS[3]), BOOKS[3]);
    for title in ["No such page", "Busy page", "@/etc/passwd"] {
        shop.request("epub", title);
    }
    shop.run(["dispatch"]).code(0).silent();
    for title in ["No such page", "@/etc/passwd"] {
        let status = eventually("it fails", || {
            Some(shop.status("epub", title)).filter(|status| status["state"] == "failed_unknown")
        });
        assert!(text(&status["detail"]).starts_with("exit 22: "), "{status}");
    }
    eventually("busy is worth another try", || {
        Some(shop.status("epub", "Busy page")).filter(|status| status["reason"] == "backing_off")
    });
    drop(wiki);
    shop.request("epub", "The Keeper's Pictures");
    shop.run(["dispatch"]).code(0).silent();
    let status = eventually("away is worth another try", || {
        Some(shop.status("epub", "The Keeper's Pictures")).filter(|status| status["reason"] == "backing_off")
    });
    assert_eq!(status["attempts"], 1);
    assert_eq!(shop.queue.published().len(), titles.len());
    shop.close();
}

#[test]
fn pandoc_that_would_go_on_for_hours_is_ended_at_its_time_limit() {
    let mut shop = Shop::new("pandoc.toml", &["pandoc"]);
    shop.set("EXPORT_QUEUE__LIMITS__TIMEOUT", "2s");
    shop.write_book("Brackets.md", &"[".repeat(30));
    shop.request("epub", "Brackets");
    let start = now();
    shop.dispatch();
    let took = start.elapsed().as_secs_f64();
    let status = shop.status("epub", "Brackets");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_timeout".into(), &"timed_out".into()));
    assert!((2.0..20.0).contains(&took), "it took {took} s");
    assert!(shop.queue.published().is_empty() && shop.queue.exporters().is_empty());
    shop.close();
}

// CASES 33
#[test]
fn a_good_file_with_a_bad_exit_code_is_no_success_unless_the_code_is_accepted() {
    let queue = Queue::new();
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("code1", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &"exit_nonzero".into()));
    assert_eq!(status["detail"], "exit 1: one image gave 404");
    assert!(queue.published().is_empty());
    queue.reconfigure("[format.code1]\n", "[format.code1]\naccept_exit = [0, 1]\n");
    queue.run(["retry", "--format", "code1", "A"]).code(3);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("code1", "A"), "ready");
    queue.assert_quiet();
}

// CASES 33
#[test]
fn an_accepted_exit_code_does_not_make_an_empty_or_missing_file_good() {
    let queue = Queue::new();
    let mut config = queue.base_config();
    let cases = [
        ("empty", "txt", ": >\"$1\"; exit 1", "output_empty"),
        ("nothing", "txt", "exit 1", "output_missing"),
        ("half", "pdf", "echo %PDF-1.4 >\"$1\"; exit 1", "output_invalid"),
    ];
    for (name, extension, script, _) in cases {
        config.push_str(&format!(
            "[format.{name}]\nextension = \"{extension}\"\naccept_exit = [0, 1]\n\
             command = [\"sh\", \"-c\", '''{script}''', \"sh\", \"{{output}}\"]\n"
        ));
    }
    queue.configure(&config);
    for (format, _, _, reason) in cases {
        queue.request(format, "A");
        queue.dispatch().code(0).silent();
        let status = queue.status(format, "A");
        assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &reason.into()), "{status}");
        assert!(text(&status["detail"]).starts_with("exit 1, but "), "{status}");
    }
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}
