//! Counts of the requests that a kernel sends to Weir and to nfs-ganesha (`cargo xtask bench kernel`).

use crate::guest::{Guest, HOST};
use crate::servers;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The port at which nfs-ganesha listens.
const PORT: u16 = 22_049;

/// The phases of the measurement, each with a name, a preparation script whose requests are not counted, a measured
/// script, and the number of operations in the measured script.
const PHASES: [(&str, &str, &str, u64); 6] = [
    ("create", "mkdir d; cd d", "for i in $(seq 100); do : > e$i; done", 100),
    (
        "open, write 4 KiB, close",
        "cd d",
        "for i in $(seq 100); do dd if=/tmp/data of=w$i bs=4k count=1 2>/dev/null; done",
        100,
    ),
    ("stat", "DROP; cd d; ls > /dev/null; DROP", "for i in $(seq 100); do stat e$i > /dev/null; done", 100),
    ("open, read 4 KiB, close", "DROP; cd d", "for i in $(seq 100); do cat w$i > /dev/null; done", 100),
    ("list 10,000 names", "DROP; cd many", "find . > /dev/null", 1),
    ("list 10,000 names with attributes", "DROP; cd many", "ls -l > /dev/null", 1),
];

/// A running nfs-ganesha process. Dropping this value kills the process.
struct Ganesha(Child);

impl Ganesha {
    fn start(dir: &Path) -> Ganesha {
        std::fs::create_dir_all(dir.join("export")).expect("a folder");
        let shown = dir.display();
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {PORT}; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false;
               Enable_UDP = false; }}
             NFSV4 {{ Graceless = true; Minor_Versions = 1, 2; RecoveryBackend = fs; RecoveryRoot = {shown}/recovery; }}
             EXPORT {{ Export_Id = 1; Path = {shown}/export; Pseudo = /export; Access_Type = RW; Squash = None; Protocols = 4;
               Transports = TCP; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
        );
        std::fs::create_dir_all(dir.join("recovery")).expect("a folder");
        std::fs::write(dir.join("conf"), text).expect("a file");
        let child = Command::new("ganesha.nfsd")
            .arg("-F")
            .args([format!("-f{shown}/conf"), format!("-L{shown}/log"), format!("-p{shown}/pid")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ganesha.nfsd starts (packages nfs-ganesha, nfs-ganesha-vfs)");
        let server = Ganesha(child);
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", PORT)).is_err() {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "nfs-ganesha does not listen:\n{log}");
            sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        // Ignore errors: the process may already have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number of requests in each phase, by NFS operation.
fn count(guest: &mut Guest, port: u16, path: &str, version: &str) -> Vec<BTreeMap<String, u64>> {
    guest.ok(&format!("mount.nfs4 -o {version},noresvport,port={port} {HOST}:{path} /mnt"));
    let mut counts = Vec::new();
    guest.ok("head -c 4096 /dev/urandom > /tmp/data");
    for (_, before, script, _) in PHASES {
        let before = before.replace("DROP", "echo 3 > /proc/sys/vm/drop_caches");
        // Run the preparation and the script in one shell, so that both have the same current directory.
        let name = "/tmp/stats";
        guest.ok(&format!(
            "cd /mnt; {before}; cat /proc/self/mountstats > {name}.0; {script}; cat /proc/self/mountstats > {name}.1"
        ));
        let stats = ["0", "1"].map(|n| {
            let text = guest.ok(&format!("cat {name}.{n}"));
            crate::mountstats::parse(&text, "/mnt").expect("the mount is there")
        });
        counts.push(stats[1].since(&stats[0]));
    }
    guest.ok("cd /mnt; rm -r d; cd /; umount /mnt");
    counts
}

fn total(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}

#[test]
#[ignore = "needs nfs-ganesha; cargo xtask bench kernel"]
fn beside_ganesha() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &[]);
    let other = home.path().join("ganesha");
    let _ganesha = Ganesha::start(&other);
    let many = other.join("export/many");
    std::fs::create_dir(&many).unwrap();
    (0..10_000).for_each(|n| drop(std::fs::File::create(many.join(format!("name-{n}"))).unwrap()));
    lab.run(["cp", "-r", many.to_str().unwrap(), "weir:/"]);
    let mut guest = Guest::boot();
    let json = std::env::var_os("WEIR_BENCH_JSON").is_some();
    let mut rows = Vec::new();
    for version in ["vers=4.1", "vers=4.2"] {
        let ours = count(&mut guest, lab.mgr.proxy.address().port(), "/", version);
        let theirs = count(&mut guest, PORT, "/export", version);
        for ((phase, _, _, things), (ours, theirs)) in PHASES.iter().zip(ours.iter().zip(&theirs)) {
            rows.push(serde_json::json!({
                "version": version, "what": phase, "things": things, "weir": total(ours), "ganesha": total(theirs),
                "weir_operations": ours, "ganesha_operations": theirs,
            }));
        }
    }
    if json {
        println!("{}", serde_json::Value::from(rows));
        return;
    }
    println!("| version | what | times | Weir | nfs-ganesha |\n| --- | --- | --- | --- | --- |");
    for row in &rows {
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        println!(
            "| {} | {} | {} | {} | {} |",
            text("version"),
            text("what"),
            row["things"],
            row["weir"],
            row["ganesha"]
        );
    }
    for row in &rows {
        println!("{} {}: {} | {}", row["version"], row["what"], row["weir_operations"], row["ganesha_operations"]);
    }
}
