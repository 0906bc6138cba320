//! Deprecated names: commands must accept them with one warning, and settings stored under them must keep their effect.

use super::cluster::{Cluster, WEIR, succeed};
use std::process::Command;

/// Runs a command, which must succeed. Returns the lines with warnings of deprecated names.
fn warnings(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said.lines().filter(|line| line.contains("deprecated")).map(str::to_owned).collect()
}

/// Returns the value of one policy setting of `path`, and `origin`, which names the place where the value is set.
fn policy(cluster: &Cluster, path: &str, part: &str) -> (String, String) {
    let shown = cluster.json(["policy", "show", "--json", path]).remove(0);
    let text = |what: &str| shown[part][what].as_str().unwrap_or_default().to_owned();
    (text("value"), text("origin"))
}

#[test]
fn former_options_are_accepted_with_one_warning() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.put("/f", &[7; 100_000], &[]);
    for (option, expected) in [("--no-direct", 1), ("--mgr-path", 0)] {
        let before = cluster.counter("counters", "proxy_read_bytes");
        let said = warnings(&mut cluster.weir(["cat", option, "/f"]));
        assert!(said.len() == expected && said.iter().all(|line| line.contains("--mgr-path")), "{said:?}");
        assert_eq!(cluster.counter("counters", "proxy_read_bytes") - before, 100_000, "{option}");
    }
    cluster.stop();
}

#[test]
fn the_former_key_for_the_layouts_of_kernels_is_accepted_with_a_warning() {
    let home = tempfile::tempdir().unwrap();
    let missing = home.path().join("cluster.toml");
    let mgr = |options: &[&str]| {
        let mut command = Command::new(WEIR);
        command.args(["mgr", "--dir"]).arg(home.path()).arg("--cluster-file").arg(&missing).args(options);
        let output = command.output().expect("the binary starts");
        assert!(!output.status.success(), "there is no cluster file");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let options = [(["--layout", "none"], "--kernel-layout"), (["--export", "/public,layout=none"], "kernel_layout")];
    for (options, now) in options {
        let said = mgr(&options);
        assert!(said.contains("layout is deprecated") && said.contains(now), "{options:?}: {said}");
    }
    let said = mgr(&["--kernel-layout", "none", "--export", "/public,kernel_layout=none"]);
    assert!(!said.contains("deprecated"), "{said}");
}

#[test]
fn the_former_value_of_access_is_accepted_with_one_warning() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/d"]);
    let set = |text: &str| warnings(&mut cluster.weir(["policy", "set", "/d", text]));
    let said = set("access=odirect");
    assert!(said.len() == 1 && said[0].contains("odirect is deprecated") && said[0].contains("unbuffered"), "{said:?}");
    assert_eq!(policy(&cluster, "/d", "access"), ("unbuffered".into(), "directory".into()));
    assert_eq!(set("access=unbuffered"), [""; 0]);
    let mut show = cluster.weir(["policy", "show", "/d"]);
    let said = warnings(show.env("WEIR_POLICY", "access=odirect"));
    assert!(said.len() == 1 && said[0].contains("unbuffered"), "{said:?}");
    assert!(String::from_utf8(succeed(&mut show)).unwrap().contains("environment"));
    cluster.stop();
}

/// Earlier releases accepted `layout` as a name of `layout_when`. Now it is another setting.
#[test]
fn a_policy_with_the_former_meaning_of_layout_is_refused_and_the_error_names_layout_when() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(home.path());
    cluster.run(["mkdir", "/d"]);
    let refused = |command: &mut Command| {
        let output = command.output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("layout_when"), "{command:?}: {said}");
    };
    refused(&mut cluster.weir(["policy", "set", "/d", "layout=open"]));
    refused(cluster.weir(["policy", "show", "/d"]).env("WEIR_POLICY", "layout=open"));
    assert_eq!(policy(&cluster, "/d", "layout"), ("stripe".into(), "driver".into()));
    assert_eq!(warnings(&mut cluster.weir(["policy", "set", "/d", "layout=log", "layout_when=first-io"])), [""; 0]);
    assert_eq!(policy(&cluster, "/d", "layout"), ("log".into(), "directory".into()));
    assert_eq!(policy(&cluster, "/d", "layout_when"), ("first-io".into(), "directory".into()));
    cluster.run(["policy", "unset", "/d", "layout"]);
    assert_eq!(policy(&cluster, "/d", "layout"), ("stripe".into(), "driver".into()));
    assert_eq!(policy(&cluster, "/d", "layout_when"), ("first-io".into(), "directory".into()));
    cluster.stop();
}
