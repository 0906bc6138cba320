//! Commands that create, move, link and remove names.

use crate::cluster::{Cluster, fail};
use serde_json::Value;

fn names(cluster: &Cluster, dir: &str) -> Vec<String> {
    let name = |item: Value| item["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    cluster.json(["ls", "-a", "--json", dir]).into_iter().map(name).collect()
}

#[test]
fn mkdir_mv_ln_rm_and_ls_handle_names_as_documented() {
    let home = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(home.path(), &["--iods", "1"]);
    cluster.run(["mkdir", "-p", "/a/b/c", "/a/b"]);
    cluster.run(["mkdir", "-m", "1750", "/a/sticky"]);
    cluster.put("/a/file", b"content", &[]);
    cluster.run(["ln", "/a/file", "/a/b"]);
    cluster.run(["ln", "-s", "../file", "/a/b/soft"]);
    assert_eq!(cluster.run(["cat", "/a/b/soft"]), b"content");
    assert_eq!(cluster.json(["stat", "--json", "/a/b/file"])[0]["links"], 2);
    assert_eq!(cluster.json(["stat", "--json", "/a/b/soft"])[0]["target"], "../file");
    assert_eq!(cluster.json(["stat", "-L", "--json", "/a/b/soft"])[0]["kind"], "file");
    assert_eq!(cluster.json(["stat", "--json", "/a/sticky"])[0]["mode"], "1750");
    cluster.run(["mv", "/a/file", "/a/b/soft", "/a/b/c"]);
    assert_eq!(names(&cluster, "/a/b/c"), ["file", "soft"]);
    // `/a/b/c/file` and `/a/b/file` are names of the same file. POSIX requires that a rename from one name to the other
    // has no effect.
    cluster.run(["mv", "/a/b/c/file", "/a/b/file"]);
    assert_eq!(names(&cluster, "/a/b"), ["c", "file"]);
    cluster.run(["mv", "-T", "/a/b", "/moved"]);
    assert_eq!(names(&cluster, "/"), ["a", "moved"]);
    cluster.put("/b", b"other", &[]);
    cluster.run(["mv", "--exchange", "-T", "/b", "/moved/c/file"]);
    assert_eq!(
        (cluster.run(["cat", "/b"]), cluster.run(["cat", "/moved/c/file"])),
        (b"content".into(), b"other".into())
    );
    cluster.run(["mv", "--exchange", "-T", "/b", "/moved/c/file"]);
    cluster.run(["mv", "-n", "/b", "/c"]);
    assert_eq!(cluster.run(["cat", "/c"]), b"other");
    let long = cluster.text(["ls", "-l", "/a"]);
    assert!(long.starts_with("drwxr-x--T 2 "), "{long}");
    let tree = cluster.text(["ls", "-R", "/"]);
    assert!(tree.contains("/moved/c:\nfile\nsoft\n"), "{tree}");

    for (args, code, part) in [
        (vec!["mkdir", "/a"], 1, "exists"),
        (vec!["mkdir", "/no/such"], 1, "no such file"),
        (vec!["rm", "/a"], 1, "add -r"),
        (vec!["rm", "/none"], 1, "no such file"),
        (vec!["rm", "-r", "/"], 1, "root of the file system"),
        (vec!["mv", "/moved", "/moved/c/below"], 1, "invalid argument"),
        (vec!["mv", "--no-clobber", "/c", "/moved/c/file"], 1, "exists"),
        (vec!["mv", "--exchange", "/c", "/none"], 1, "no such file"),
        (vec!["mv", "--exchange", "-n", "/c", "/a"], 2, "cannot be used with"),
        (vec!["mv", "/a", "/moved", "/none"], 2, "not a directory"),
        (vec!["ln", "/a", "/hard"], 1, ""),
        (vec!["ls", "/none"], 1, "no such file"),
        (vec!["cat", "/moved/c/none"], 1, "no such file"),
        (vec!["ls", "-a", "--wrong"], 2, "--wrong"),
        (vec!["ls", "weir:/x", "weir://127.0.0.1:1/"], 3, "weir up"),
        (vec!["mkdir", &"n".repeat(256)], 2, "255"),
    ] {
        let said = fail(&mut cluster.weir(&args), code);
        assert!(said.contains(part), "{args:?}: {said}");
    }
    // After the command has failed to remove one name, it must still remove the other names on its command line.
    fail(&mut cluster.weir(["rm", "/none", "/moved/file"]), 1);
    assert_eq!(names(&cluster, "/moved"), ["c"]);
    cluster.run(["rm", "-f", "/none"]);
    cluster.run(["rm", "-r", "/a", "/moved", "/c"]);
    assert!(names(&cluster, "/").is_empty());
    let df = cluster.json(["df", "--json"]).remove(0);
    assert!(df["bytes_total"].as_u64() > Some(0) && df["bytes_available"].as_u64() > Some(0), "{df}");
    cluster.stop();
}
