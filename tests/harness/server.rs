//! A PostgreSQL server of the tests' own: a data directory of its own, a socket and no port unless a test asks for one. It
//! ends with the process that started it, however that ends, and leaves nothing.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::eventually;
use super::hosts::Host;

/// Runs the server while somebody holds the other end of its input, then ends it and removes its directory.
const KEEPER: &str = r#"
"$@" >>"$DIR/log" 2>&1 </dev/null &
server=$!
cat
kill -INT $server
wait $server
rm -rf "$DIR"
"#;

/// A running server.
pub(crate) struct Server {
    dir: PathBuf,
    bin: PathBuf,
    options: Vec<String>,
    /// The host that it runs on, where that is one of the tests' own.
    way: Vec<String>,
    keeper: Mutex<Option<Child>>,
}

impl Server {
    /// Starts a server for one test; it ends with the process.
    pub(crate) fn own(options: &[&str]) -> &'static Self {
        Box::leak(Box::new(Self::start(options, None)))
    }

    /// Starts a server on a host of the tests' own: the other hosts of its network reach it there.
    pub(crate) fn on(host: &Host) -> &'static Self {
        let listens = format!("listen_addresses={}", host.address());
        Box::leak(Box::new(Self::start(&["-c", &listens], Some(host))))
    }

    fn keeper(&self) -> MutexGuard<'_, Option<Child>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a server with further options of its command line (`-c name=value`).
    fn start(options: &[&str], host: Option<&Host>) -> Self {
        let bin = programs();
        // A socket's path may have 107 bytes.
        let dir = tempfile::Builder::new().prefix("pg").tempdir_in("/tmp").expect("a directory").keep();
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("a mode");
        if let Some((uid, gid)) = other_user() {
            chown(&dir, Some(uid), Some(gid)).expect("an owner");
        }
        let options = options.iter().map(ToString::to_string).collect();
        let server = Self { dir, bin, options, way: host.map(Host::way).unwrap_or_default(), keeper: Mutex::new(None) };
        let mut init = server.program("initdb");
        init.args(["-U", "queue", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D"]);
        let made = init.arg(server.dir.join("data")).stdout(Stdio::null()).status().expect("initdb can be started");
        assert!(made.success(), "initdb failed");
        if host.is_some() {
            let rules = fs::OpenOptions::new().append(true).open(server.dir.join("data/pg_hba.conf"));
            writeln!(rules.expect("who may come in"), "host all all samenet trust").expect("a further line");
        }
        server.up();
        server
    }

    /// Starts it again after [`Self::down`].
    pub(crate) fn up(&self) {
        let command = self.program("postgres");
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).args(&self.way).arg(command.get_program()).args(command.get_args());
        keeper.arg("-D").arg(self.dir.join("data")).arg("-k").arg(&self.dir);
        keeper.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off"]);
        keeper.args(["-c", "shared_buffers=64MB", "-c", "max_connections=200"]).args(&self.options);
        keeper.env("DIR", &self.dir).current_dir("/").stdin(Stdio::piped());
        *self.keeper() = Some(keeper.spawn().expect("the server can be started"));
        eventually("the server answers", || {
            let mut ready = self.program("pg_isready");
            let status = ready.arg("-q").arg("-h").arg(&self.dir).status().expect("pg_isready can be started");
            status.success().then_some(())
        });
    }

    /// Ends it at once, as a crash would; its data stay.
    pub(crate) fn down(&self) {
        let stop = |server: &Self| {
            let mut stop = server.program("pg_ctl");
            stop.args(["-m", "immediate", "-w", "stop", "-D"]).arg(server.dir.join("data"));
            assert!(stop.stdout(Stdio::null()).status().expect("pg_ctl can be started").success(), "it does not stop");
        };
        stop(self);
        // The keeper would remove the data: it is ended without being asked.
        if let Some(mut keeper) = self.keeper().take() {
            keeper.kill().expect("the keeper is ours");
            keeper.wait().expect("the keeper ends");
        }
    }

    /// Where its socket is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The pid of its first process.
    pub(crate) fn pid(&self) -> i32 {
        let text = fs::read_to_string(self.dir.join("data/postmaster.pid")).expect("a running server");
        text.lines().next().and_then(|line| line.parse().ok()).expect("a pid")
    }

    /// The URL of a database of this server.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://queue@/{database}?host={}", self.dir.display())
    }

    /// Makes a database that nothing else uses.
    pub(crate) fn fresh_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fresh_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Runs SQL in a database; its rows, columns parted by `|`.
    #[track_caller]
    pub(crate) fn sql(&self, database: &str, sql: &str) -> Vec<String> {
        let mut psql = self.program("psql");
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "queue", "-d", database, "-c", sql]);
        psql.env("PGOPTIONS", "-c search_path=export_queue,public -c default_transaction_read_only=off");
        let output = psql.arg("-h").arg(&self.dir).output().expect("psql can be started");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {told}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// A program of the server, run as the user whom it runs as.
    pub(crate) fn program(&self, name: &str) -> Command {
        as_server(&self.bin.join(name))
    }
}

/// The files of a certificate authority and of a server whose certificate it has signed.
pub(crate) struct Certificates {
    /// The authority's certificate.
    pub(crate) authority: PathBuf,
    /// Another authority's, which has signed nothing.
    pub(crate) stranger: PathBuf,
    /// Where the server listens.
    pub(crate) address: String,
}

/// The name that the server's certificate is for.
pub(crate) const TLS_NAME: &str = "db.example.org";

impl Server {
    /// A server that lets nobody in by TCP but through TLS.
    pub(crate) fn with_tls() -> (&'static Self, Certificates) {
        let mut server = Self::start(&[], None);
        let file = |name: &str| server.dir.join(name);
        let certificates = Certificates {
            authority: make_authority(&server.dir, "authority"),
            stranger: make_authority(&server.dir, "stranger"),
            // A loopback address of its own, so that no port clashes.
            address: format!("127.{}.{}.7", 1 + std::process::id() / 250 % 250, 1 + std::process::id() % 250),
        };
        fs::write(file("names"), format!("subjectAltName=DNS:{TLS_NAME}\n")).expect("a file");
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"];
        let name = format!("/CN={TLS_NAME}");
        openssl(&server.dir, &[&["req"], &key[..], &["server.key", "-out", "server.csr", "-subj", &name]].concat());
        let signed = ["x509", "-req", "-in", "server.csr", "-CA", "authority.pem", "-CAkey", "authority.key"];
        let more = ["-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "server.pem"];
        openssl(&server.dir, &[&signed[..], &more[..]].concat());
        fs::set_permissions(file("server.key"), PermissionsExt::from_mode(0o600)).expect("a mode");
        if let Some((uid, gid)) = other_user() {
            chown(file("server.key"), Some(uid), Some(gid)).expect("an owner");
        }
        let doors = file("data/pg_hba.conf");
        let text = fs::read_to_string(&doors).expect("the server's doors");
        let local = text.lines().filter(|line| line.starts_with("local")).map(|line| format!("{line}\n"));
        let text = local.collect::<String>() + "hostssl all all 127.0.0.0/8 trust\n";
        fs::write(&doors, text).expect("the server's doors");
        let settings = [
            format!("listen_addresses={}", certificates.address),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("server.pem").display()),
            format!("ssl_key_file={}", file("server.key").display()),
            "log_connections=on".to_owned(),
        ];
        server.down();
        server.options.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        server.up();
        (Box::leak(Box::new(server)), certificates)
    }

    /// What the server has noted.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

fn make_authority(dir: &Path, name: &str) -> PathBuf {
    let (key, out, subject) = (format!("{name}.key"), format!("{name}.pem"), format!("/CN={name}"));
    let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    openssl(dir, &[&make[..], &["-keyout", &key, "-out", &out, "-subj", &subject]].concat());
    dir.join(out)
}

fn openssl(dir: &Path, args: &[&str]) {
    let made = Command::new("openssl").args(args).current_dir(dir).output();
    let made = made.expect("openssl is not installed: run `examples/install-converters openssl`");
    assert!(made.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// PgBouncer in transaction mode, on a socket of its own; it ends as the server does.
pub(crate) struct Pooler {
    dir: PathBuf,
    _keeper: Child,
}

impl Server {
    /// Starts a pooler before this server, with so many sessions.
    pub(crate) fn pooler(&self, sessions: u32) -> Pooler {
        let dir = tempfile::Builder::new().prefix("pgb").tempdir_in("/tmp").expect("a directory").keep();
        let settings = format!(
            "[databases]\n* = host={}\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {}\nlisten_port = 6432\n\
             auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {sessions}\n",
            self.dir.display(),
            dir.display(),
            dir.join("users").display()
        );
        fs::write(dir.join("users"), "\"queue\" \"\"\n").expect("a file");
        fs::write(dir.join("settings"), settings).expect("a file");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("a mode");
        if let Some((uid, gid)) = other_user() {
            chown(&dir, Some(uid), Some(gid)).expect("an owner");
        }
        let bouncer = which::which_in("pgbouncer", Some("/usr/sbin:/usr/bin"), "/");
        let bouncer = bouncer.expect("PgBouncer is not installed: run `examples/install-converters pgbouncer`");
        let command = as_server(&bouncer);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(command.get_program()).args(command.get_args());
        keeper.arg("-q").arg(dir.join("settings")).env("DIR", &dir).current_dir("/").stdin(Stdio::piped());
        let keeper = keeper.spawn().expect("the pooler can be started");
        eventually("the pooler listens", || dir.join(".s.PGSQL.6432").exists().then_some(()));
        Pooler { dir, _keeper: keeper }
    }
}

impl Pooler {
    /// Where its socket is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A program, run as the user whom the server runs as.
fn as_server(path: &Path) -> Command {
    if other_user().is_none() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"]).arg(path).current_dir("/");
    command
}

/// A server that all tests of this process share, each in a database of its own.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&[], None))
}

/// Where the server's programs are.
fn programs() -> PathBuf {
    let installed = glob::glob("/usr/lib/postgresql/*/bin/postgres").expect("a pattern").flatten().max();
    let postgres = installed.or_else(|| which::which("postgres").ok());
    let postgres = postgres.expect("PostgreSQL is not installed: run `examples/install-converters postgresql`");
    postgres.parent().expect("a directory").to_owned()
}

/// The server refuses root: where tests run as root it runs as `postgres`.
fn other_user() -> Option<(u32, u32)> {
    let user = nix::unistd::User::from_name("postgres").ok().flatten();
    nix::unistd::geteuid().is_root().then(|| {
        let user = user.expect("there is a user postgres");
        (user.uid.as_raw(), user.gid.as_raw())
    })
}
