//! Hosts of the tests' own: each has its name and its network, and a cable to a switch that nothing else is on.
//!
//! A host is kept by a process that reads from the tests' own: it ends with them, however they end, and with its last process
//! everything of the host is gone. Root only.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::call;

/// Runs on a new host until the other end of its input is closed.
const KEEPER: &str = "hostname \"$0\" && ip link set lo up && echo ready && exec cat >/dev/null";

/// One host.
pub(crate) struct Host {
    number: usize,
    keeper: Child,
}

/// A switch: a host of its own, number 1, to which the others are connected.
pub(crate) struct Switch(Host);

impl Host {
    fn new(number: usize) -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test needs root for networks of its own");
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--uts", "sh", "-c", KEEPER, &format!("host{number}")]);
        let mut keeper =
            unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a host of its own (util-linux)");
        let mut line = String::new();
        let out = keeper.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("its output");
        assert_eq!(line, "ready\n", "no host can be made: the kernel needs network namespaces, and iproute2 is used");
        Self { number, keeper }
    }

    /// The words before a command that is to run on this host.
    pub(crate) fn way(&self) -> Vec<String> {
        let target = format!("--target={}", self.keeper.id());
        ["nsenter", &target, "--net", "--uts", "--"].map(str::to_owned).into()
    }

    /// Its address.
    pub(crate) fn address(&self) -> String {
        format!("10.77.0.{}", self.number)
    }

    #[track_caller]
    fn run(&self, script: &str) {
        let way = self.way();
        call(Command::new(&way[0]).args(&way[1..]).args(["sh", "-ec", script])).code(0).silent();
    }

    /// From now on that many packets of a hundred are lost on their way to this host, and as many on their way back.
    pub(crate) fn lose(&self, percent: u32) {
        let rule = format!("-m statistic --mode random --probability 0.{percent:02} -j DROP");
        self.run(&format!("iptables -A INPUT {rule}\niptables -A OUTPUT {rule}"));
    }

    fn port(&self) -> String {
        format!("port{}", self.number)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.keeper.kill().expect("the keeper is ours");
        self.keeper.wait().expect("the keeper ends");
    }
}

impl Switch {
    pub(crate) fn new() -> Self {
        let host = Host::new(1);
        host.run(&format!("ip link add bridge type bridge\nip address add {}/24 dev bridge", host.address()));
        host.run("ip link set bridge up");
        Self(host)
    }

    /// The host that is the switch.
    pub(crate) fn host(&self) -> &Host {
        &self.0
    }

    /// A new host at this switch.
    pub(crate) fn connect(&self, number: usize) -> Host {
        let host = Host::new(number);
        let (port, pid) = (host.port(), host.keeper.id());
        self.0
            .run(&format!("ip link add {port} type veth peer name eth0 netns {pid}\nip link set {port} master bridge"));
        host.run(&format!("ip address add {}/24 dev eth0\nip link set eth0 up", host.address()));
        self.plug(&host);
        host
    }

    /// Pulls the cable of a host: what it sends is lost, and nobody tells it.
    pub(crate) fn unplug(&self, host: &Host) {
        self.0.run(&format!("ip link set {} down", host.port()));
    }

    /// Puts the cable back.
    pub(crate) fn plug(&self, host: &Host) {
        self.0.run(&format!("ip link set {} up", host.port()));
    }
}
