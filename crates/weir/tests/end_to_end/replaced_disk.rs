//! The commands of docs/replacing-a-disk.md, run for an iod whose disk is lost.

use crate::lab::Lab;
use crate::tree::bytes;
use std::path::Path;
use std::process::{Child, Command};

/// The path of the iod's store in the commands of the documentation page that this test runs. The test replaces all
/// paths of the page by paths in its own directory.
const STORE: &str = "/srv/new/iod";
const CLUSTER_FILE: &str = "/etc/weir/cluster.toml";
const CONFIG: &str = "/etc/weir/iod.toml";

/// Returns the commands of a page, without the output that the page shows below each command.
fn commands(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.trim_start().strip_prefix("$ ")).collect()
}

/// Returns the iod identity that follows `--replace` in a command of the page.
fn identity(command: &str) -> &str {
    command.split_whitespace().skip_while(|word| *word != "--replace").nth(1).expect("a command with --replace")
}

/// A process of the test. Dropping this value kills the process, even if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Ignore errors: the process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_commands_of_the_page_replace_a_lost_disk() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/replacing-a-disk.md");
    let page = std::fs::read_to_string(page).unwrap();
    let [status, mkfs, start] = commands(&page)[..] else { panic!("the page has other commands: {page}") };
    let home = tempfile::tempdir().unwrap();
    let mut lab = Lab::start_with(home.path(), 2, &["--mirrors", "2", "--inline-max", "0", "--lease-secs", "20"]);
    let content = bytes(1, 3_000_000);
    lab.put("/file", &content);
    lab.iods[1].kill();
    std::fs::remove_dir_all(home.path().join("iod-1")).unwrap();

    let weir = |command: &str| lab.weir(command.strip_prefix("weir ").expect("a command of weir").split_whitespace());
    let gone = loop {
        let said = weir(status).output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        let problem =
            said.lines().find(|line| line.trim_start().starts_with("problem iod ") && line.contains(" is down"));
        if let Some(problem) = problem {
            assert!(said.starts_with("health    degraded"), "{said}");
            break problem.split_whitespace().nth(2).unwrap().to_owned();
        }
    };
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let mkfs =
        mkfs.replace(identity(mkfs), &gone).replace(STORE, &path("new")).replace(CLUSTER_FILE, &path("cluster.toml"));
    crate::cluster::succeed(&mut weir(&mkfs));
    let config = format!("dir = {:?}\ncluster_file = {:?}\nunix = false\n", path("new"), path("cluster.toml"));
    std::fs::write(path("iod.toml"), config).unwrap();
    let start = start.replace(CONFIG, &path("iod.toml"));
    let address = lab.iods[1].address().to_string();
    let mut command: Command = weir(&start);
    let (iod, _) = crate::cluster::ready(command.args(["--listen", &address]));
    let _iod = Killed(iod);

    let number = |group: &str, name: &str| {
        // Ignore the exit code: `weir status` fails while the cluster is degraded.
        let said = weir("weir status --json").output().unwrap().stdout;
        let groups: Vec<serde_json::Value> = serde_json::from_slice(&said).unwrap();
        let values = groups.iter().find(|found| found["group"] == group).unwrap()["values"].clone();
        values[name].as_u64()
    };
    while number("counters", "copies_rebuilt") < Some(1) || number("work", "copies_to_make") != Some(0) {}
    lab.iods[0].kill();
    let back = path("back");
    lab.run(["cp", "weir:/file", &back]);
    assert!(std::fs::read(&back).unwrap() == content, "the new disk has every byte");
}
