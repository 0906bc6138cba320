//! The quick start of README.md, run in separate network and mount namespaces.

use crate::cluster::WEIR;
use std::path::Path;
use std::process::Command;

/// Returns the commands of the section "Quick start".
fn commands(readme: &str) -> Vec<&str> {
    let section =
        readme.split("\n## ").find(|section| section.starts_with("Quick start\n")).expect("the section is there");
    section.lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// Runs in new namespaces, where no other process uses the port of the quick start, and nothing is mounted at the
/// directory of the quick start.
#[test]
fn the_commands_of_the_readme_quick_start_succeed() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("not run: it needs root and FUSE");
        return;
    }
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let commands = commands(&readme);
    assert_eq!(commands[0], "cargo build --release");
    assert!(commands.len() >= 9, "{commands:?}");
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("project/below")).unwrap();
    std::fs::write(home.path().join("project/data.bin"), vec![7; 3_000_000]).unwrap();
    std::fs::write(home.path().join("project/below/small"), "small").unwrap();
    // Use the binary under test in place of the build step. When the shell exits, it stops the mount and the cluster.
    let begin = "set -e; ip link set lo up; mount -t tmpfs none /mnt
        trap 'umount /mnt/weir || true; kill %1; wait %1 || true' EXIT";
    let bin = Path::new(WEIR).parent().unwrap().display().to_string();
    let steps = commands[1..].join("\n").replace("$PWD/target/release", &bin);
    // A reader waits for the message of `weir up` before typing the next command. So wait until the cluster replies to
    // a command.
    let steps = steps.replace("weir up &", "weir up &\nuntil weir ls / > /dev/null 2>&1; do kill -0 %1; done");
    let mut shell = Command::new("unshare");
    shell.args(["--net", "--mount", "bash", "-c", &format!("{begin}\n{steps}")]).current_dir(home.path());
    let output = shell.env("HOME", home.path()).env_remove("WEIR_URL").output().unwrap();
    let said = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].join("\n");
    assert!(output.status.success(), "{said}");
    assert!(said.contains("data.bin") && said.contains("below"), "{said}");
    assert!(std::fs::read(home.path().join("back/data.bin")).unwrap() == [7; 3_000_000]);
}
