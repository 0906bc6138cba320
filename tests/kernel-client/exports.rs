//! Exports as seen by guests: visible directories, access, and the options of each export.

use crate::guest::Guest;
use crate::servers;

#[test]
fn guests_see_only_their_exports_on_the_terms_of_each() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &[]);
    let mut guest = Guest::boot();
    guest.mount(lab.mgr.proxy.address().port(), "vers=4.2");
    guest.ok(
        "cd /mnt; mkdir -p public secret deep/a/b deep/other users/rw users/closed/dir; chmod 777 users users/rw deep/a/b; \
         chmod 700 deep; echo SECRET > users/closed/data; echo SECRET > users/closed/dir/data; chmod -R 777 users/closed",
    );
    guest.ok(
        "cd /mnt; echo read me > public/text; echo not for you > users/roots; chmod 600 users/roots; cd /; umount /mnt",
    );
    drop(lab);

    let exports = [
        ["--export", "/public,access=ro"],
        ["--export", "/users,squash=root,kernel_layout=none,stripe_unit=64K"],
        ["--export", "/secret,clients=10.99.0.0/16"],
        ["--export", "/deep/a/b,clients=127.0.0.0/8,squash=all,anon_uid=77,anon_gid=78"],
        ["--export", "/users/rw"],
        ["--export", "/users/closed,clients=10.99.0.0/16"],
    ];
    let lab = servers::start(home.path(), 2, exports.as_flattened());
    let port = lab.mgr.proxy.address().port();
    for version in ["vers=4.1", "vers=4.2"] {
        guest.mount(port, version);
        // Above the exports, the guest may see only the directories on the way to exports, and may change none of them.
        assert_eq!(
            guest.ok("ls /mnt; ls /mnt/deep /mnt/deep/a"),
            "deep\npublic\nusers\n/mnt/deep:\na\n\n/mnt/deep/a:\nb"
        );
        guest.ok("! ls /mnt/secret 2>/dev/null && ! ls /mnt/deep/other 2>/dev/null");
        let refused = guest.ok("touch /mnt/new 2>&1; mkdir /mnt/deep/new 2>&1; true");
        assert_eq!(refused.matches("Read-only file system").count(), 2, "{refused}");

        assert_eq!(guest.ok("cat /mnt/public/text"), "read me");
        for change in
            ["echo x > /mnt/public/new", "echo x >> /mnt/public/text", "rm /mnt/public/text", "chmod 600 /mnt/public"]
        {
            let refused = guest.ok(&format!("({change}) 2>&1; true"));
            assert!(refused.contains("Read-only file system"), "{change}: {refused}");
        }

        // The export /users maps root to the anonymous user.
        let refused = guest.ok("cat /mnt/users/roots 2>&1; true");
        assert!(refused.contains("Permission denied"), "{refused}");
        guest.ok("echo mine > /mnt/users/mine; dd if=/dev/urandom of=/mnt/users/large bs=1M count=4 2>/dev/null");
        assert_eq!(guest.ok("stat -c %u:%g /mnt/users/mine"), "65534:65534");
        // The export /users/rw inside /users has its own options. Links and renames between both exports must fail.
        guest.ok("echo x > /mnt/users/rw/x");
        assert_eq!(guest.ok("stat -c %u:%g /mnt/users/rw/x"), "0:0");
        guest.ok("! ln /mnt/users/mine /mnt/users/rw/mine 2>/dev/null");
        guest.ok("mv /mnt/users/mine /mnt/users/rw/mine; cat /mnt/users/rw/mine; rm /mnt/users/rw/*");
        guest.ok("echo x > /mnt/deep/a/b/x");
        assert_eq!(guest.ok("stat -c %u:%g /mnt/deep/a/b/x"), "77:78");
        check_closed_export_stays_closed(&mut guest);
        check_each_export_is_a_file_system(&mut guest);
        guest.ok("rm /mnt/users/large /mnt/deep/a/b/x; umount /mnt/users/rw /mnt/users /mnt/public /mnt/deep/a/b /mnt");

        // A guest can mount an export by its own path. A mount of a directory that is not exported must fail.
        let server = format!("port={port},{version}");
        let mount = |path: &str| format!("mount.nfs4 -o {server},noresvport 10.0.2.2:{path} /mnt 2>&1");
        guest.ok(&format!("{}; cat /mnt/text; umount /mnt", mount("/public")));
        for path in ["/secret", "/deep/other"] {
            guest.ok(&format!("! {}", mount(path)));
        }
    }
    drop(lab);
    servers::start(home.path(), 2, &[]).fsck();
}

/// Operations on the directory above an export that the guest may not access must not give access to this export. For
/// example, kernels request the filehandles of all entries when they list a directory.
fn check_closed_export_stays_closed(guest: &mut Guest) {
    let looks = "ls -l /mnt/users; ls -lR /mnt/users; find /mnt/users; mkdir -p /tmp/bound; mount -o bind /mnt/users /tmp/bound; \
                 cat /mnt/users/closed/data /mnt/users/closed/dir/data /tmp/bound/closed/data; (cd /tmp/bound/closed && cat data); \
                 ls /mnt/users/closed/..; mv /mnt/users/closed /mnt/users/x; ls -l /mnt/users; cat /mnt/users/x/data; \
                 echo 3 > /proc/sys/vm/drop_caches; cat /mnt/users/closed/data; umount /tmp/bound";
    let said = guest.ok(&format!("({looks}) 2>&1; true"));
    assert!(!said.contains("SECRET") && !said.contains("closed/dir\n"), "{said}");
    assert!(said.contains("Permission denied"), "{said}");
}

/// Each export must have its own device number, and its own setting of pNFS.
fn check_each_export_is_a_file_system(guest: &mut Guest) {
    let devices = guest.ok("stat -c %d /mnt /mnt/public /mnt/users /mnt/users/rw /mnt/deep/a/b | sort -u | wc -l");
    assert_eq!(devices, "5");
    let stats = guest.ok("grep -A8 ' mounted on /mnt/' /proc/self/mountstats");
    let kind = |dir: &str| {
        let at = stats.find(&format!(" mounted on {dir} ")).unwrap_or_else(|| panic!("{dir}: {stats}"));
        let kind = stats[at..].split("pnfs=").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
        kind.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!((kind("/mnt/users").as_str(), kind("/mnt/users/rw").as_str()), ("not", "LAYOUT_NFSV4_1_FILES"));
}
