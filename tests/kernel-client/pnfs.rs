//! Direct data paths of pNFS: a guest reads and writes on the iods with file layouts and flexible file layouts.

use crate::guest::{Guest, versions};
use crate::lab::Lab;
use crate::servers;

/// Returns a counter from the status of the mgr.
fn counter(lab: &Lab, name: &str) -> u64 {
    servers::number(lab, "counters", name)
}

#[test]
fn data_take_the_direct_path_and_sizes_are_known() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 3, &["--stripe-unit", "1M", "--mds-threshold", "0"]);
    let (mut one, mut other) = Guest::boot_two();
    let port = lab.mgr.proxy.address().port();
    for version in ["vers=4.1", "vers=4.2"] {
        one.mount(port, version);
        other.mount(port, version);
        one.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=32 2>/dev/null");
        let sum = one.ok("cp /tmp/data /mnt/data; md5sum < /tmp/data");
        let stats = one.mountstats();
        assert_eq!(stats.pnfs, "LAYOUT_NFSV4_1_FILES");
        assert_eq!((stats.count("GETDEVICEINFO"), stats.count("LAYOUTCOMMIT")), (1, 1), "{stats:?}");
        assert_eq!(other.ok("stat -c %s /mnt/data; md5sum < /mnt/data"), format!("{}\n{sum}", 32 << 20));
        assert_eq!(one.ok("echo 3 > /proc/sys/vm/drop_caches; md5sum < /mnt/data"), sum);
        // Weir's own client must read the same bytes as the guest.
        std::fs::write(home.path().join("ours"), lab.run(["cat", "/data"])).unwrap();
        let ours = std::process::Command::new("md5sum").arg(home.path().join("ours")).output().unwrap();
        assert_eq!(String::from_utf8(ours.stdout).unwrap().split(' ').next(), sum.split(' ').next());
        // A short write must not need a LAYOUTCOMMIT, because the iod reports the write to the mgr.
        one.ok("echo hello > /mnt/f");
        assert_eq!(one.ok("stat -c %s /mnt/f"), "6");
        assert_eq!(other.ok("stat -c %s /mnt/f; cat /mnt/f"), "6\nhello");
        one.ok("dd if=/tmp/data of=/mnt/direct bs=512k count=9 oflag=direct 2>/dev/null");
        one.ok("dd if=/tmp/data of=/mnt/small bs=4k count=700 2>/dev/null");
        for (name, bytes) in [("direct", 9 << 19), ("small", 700 << 12)] {
            let there = one.ok(&format!("head -c {bytes} /tmp/data | md5sum"));
            let here = other.ok(&format!("stat -c %s /mnt/{name}; md5sum < /mnt/{name}"));
            assert_eq!(here, format!("{bytes}\n{there}"));
        }
        // The first guest overwrites the file without changing its size. The other guest must still see the new bytes.
        one.ok("echo world > /tmp/w; dd if=/tmp/w of=/mnt/f conv=notrunc 2>/dev/null");
        assert_eq!(other.ok("cat /mnt/f"), "world");
        // The iods report writes late. These reports must not change the times that a program has set after its writes.
        one.ok("cp /tmp/data /mnt/kept; touch -d '2001-02-03 04:05:06' /mnt/kept");
        one.ok("sh -c 'echo x >> /mnt/dated; touch -d \"2001-02-03 04:05:06\" /mnt/dated'");
        assert_eq!(other.ok("stat -c %Y /mnt/kept /mnt/dated"), "981173106\n981173106");
        one.ok("rm /mnt/*; umount /mnt");
        other.ok("umount /mnt");
    }
    assert_eq!((counter(&lab, "proxy_write_bytes"), counter(&lab, "proxy_read_bytes")), (0, 0));
    assert!(counter(&lab, "news") > 0);
    lab.fsck();
}

#[test]
fn reads_continue_behind_the_end_of_an_object() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 3, &["--stripe-unit", "64k", "--mds-threshold", "0"]);
    let (mut one, mut other) = Guest::boot_two();
    let direct = |bytes: u32| format!("dd if=/mnt/a iflag=direct bs={bytes} count=1 2>/dev/null");
    for version in versions() {
        one.mount(lab.mgr.proxy.address().port(), version);
        other.mount(lab.mgr.proxy.address().port(), version);
        // Write 100 bytes, leave a hole behind them, and then write a stripe unit that is on another iod.
        one.ok("head -c 100 /dev/urandom > /tmp/a; cp /tmp/a /mnt/a");
        one.ok("dd if=/dev/zero bs=64k seek=4 count=1 of=/mnt/a conv=notrunc,fsync 2>/dev/null; truncate -s 4k /tmp/a");
        let sum = one.ok("md5sum < /tmp/a");
        for guest in [&mut one, &mut other] {
            assert_eq!(guest.ok(&format!("{} | md5sum", direct(4096))), sum);
            assert_eq!(guest.ok(&format!("{} | wc -c", direct(65536))), "65536");
            assert_eq!(guest.ok("dd if=/mnt/a iflag=direct bs=64k 2>/dev/null | wc -c"), "327680");
        }
        // Both guests must find the same end of the file, also with direct I/O.
        one.ok("dd if=/dev/urandom of=/tmp/b bs=70000 count=1 2>/dev/null; cp /tmp/b /mnt/b");
        for guest in [&mut other, &mut one] {
            assert_eq!(guest.ok("dd if=/mnt/b iflag=direct bs=64k 2>/dev/null | wc -c"), "70000");
        }
        one.ok("echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/b /mnt/b; dd if=/mnt/b iflag=direct bs=64k 2>/dev/null | cmp - /tmp/b");
        // No byte of data may take the mgr path. The iods may request only the lengths of files from the mgr.
        assert_eq!((counter(&lab, "proxy_write_bytes"), counter(&lab, "proxy_read_bytes")), (0, 0));
        let unknown = counter(&lab, "lengths_unknown");
        assert!(counter(&lab, "lengths_asked") > unknown);
        one.ok("rm /mnt/*; umount /mnt");
        other.ok("umount /mnt");
    }
    // The other guest truncates and extends the file. The guest that has the file open for writing must also read the
    // right bytes.
    one.mount(lab.mgr.proxy.address().port(), "vers=4.2");
    other.mount(lab.mgr.proxy.address().port(), "vers=4.2");
    one.ok("head -c 3000 /tmp/b | tee /tmp/a > /mnt/a");
    for size in [100, 4000, 300_000, 50, 4095, 4097, 0] {
        other.ok(&format!("truncate -s {size} /mnt/a"));
        let sum = one.ok(&format!("truncate -s {size} /tmp/a; head -c 4096 /tmp/a | md5sum"));
        for guest in [&mut one, &mut other] {
            assert_eq!(guest.ok(&format!("{} | md5sum", direct(4096))), sum, "{size}");
        }
    }
    let writing = "exec 3<>/mnt/a; dd if=/tmp/b bs=100 count=1 conv=notrunc,fsync of=/mnt/a 2>/dev/null; ";
    let further = "dd if=/tmp/b bs=64k count=1 seek=4 conv=notrunc,fsync of=/mnt/a 2>/dev/null; ";
    assert_eq!(one.ok(&format!("{writing} {} | wc -c; {further} {} | wc -c", direct(4096), direct(4096))), "100\n4096");
    one.ok("umount /mnt");
    other.ok("umount /mnt");
    lab.fsck();
}

#[test]
fn small_files_take_the_mgr_path() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 2, &[]);
    let mut guest = Guest::boot();
    for version in versions() {
        guest.mount(lab.mgr.proxy.address().port(), version);
        guest.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null");
        let proxied = || (counter(&lab, "proxy_write_bytes"), counter(&lab, "proxy_read_bytes"));
        let before = proxied();
        // No byte of a large file may take the mgr path, whether the guest uses the page cache or direct I/O.
        guest.ok("cp /tmp/data /mnt/large; dd if=/tmp/data of=/mnt/direct bs=1M oflag=direct 2>/dev/null");
        guest.ok("echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/data /mnt/large && cmp /tmp/data /mnt/direct");
        assert_eq!(proxied(), before);
        // All bytes of small files must take the mgr path.
        guest.ok("for i in $(seq 20); do dd if=/tmp/data of=/mnt/s$i bs=10000 count=1 2>/dev/null || exit 1; done");
        guest.ok("head -c 1000000 /tmp/data > /mnt/s21; echo 3 > /proc/sys/vm/drop_caches");
        guest.ok("head -c 10000 /tmp/data > /tmp/s; for i in $(seq 20); do cmp /tmp/s /mnt/s$i || exit 1; done");
        assert_eq!(proxied(), (before.0 + 1_200_000, before.1 + 200_000));
        // When a small file grows, its new bytes must take the direct path, and no byte of the file may be lost.
        guest.ok("dd if=/tmp/data of=/mnt/s21 bs=1000000 seek=1 skip=1 count=7 conv=notrunc 2>/dev/null");
        guest.ok("echo 3 > /proc/sys/vm/drop_caches; head -c 8000000 /tmp/data | cmp - /mnt/s21");
        assert_eq!(proxied(), (before.0 + 1_200_000, before.1 + 200_000));
        // The write threshold in the policy of a directory decides up to which size the bytes of the directory's files
        // take the mgr path.
        lab.run(["mkdir", "/d"]);
        lab.run(["policy", "set", "/d", "write_threshold=64K"]);
        guest.ok("head -c 100000 /tmp/data > /mnt/d/large; head -c 100000 /tmp/data | cmp - /mnt/d/large");
        assert_eq!(proxied().0, before.0 + 1_200_000);
        guest.ok("head -c 10000 /tmp/data > /mnt/d/small");
        assert_eq!(proxied().0, before.0 + 1_210_000);
        guest.ok("rm -r /mnt/*; umount /mnt");
    }
    lab.fsck();
}

#[test]
fn flexible_files_take_the_direct_path_to_their_iod() {
    let home = tempfile::tempdir().unwrap();
    let lab = servers::start(home.path(), 3, &["--kernel-layout", "flexfiles", "--mds-threshold", "0"]);
    let (mut one, mut other) = Guest::boot_two();
    for version in versions() {
        one.mount(lab.mgr.proxy.address().port(), version);
        other.mount(lab.mgr.proxy.address().port(), version);
        one.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null");
        let sum = one.ok("for i in 1 2 3; do cp /tmp/data /mnt/f$i; done; md5sum < /tmp/data");
        assert_eq!(one.mountstats().pnfs, "LAYOUT_FLEX_FILES");
        one.ok("echo 3 > /proc/sys/vm/drop_caches; for i in 1 2 3; do cmp /tmp/data /mnt/f$i || exit 1; done");
        assert_eq!(other.ok("stat -c %s /mnt/f2; md5sum < /mnt/f2"), format!("{}\n{sum}", 16 << 20));
        one.ok("echo hello > /mnt/f; dd if=/tmp/data of=/mnt/direct bs=512k count=5 oflag=direct 2>/dev/null");
        assert_eq!(other.ok("stat -c %s /mnt/f /mnt/direct; cat /mnt/f"), format!("6\n{}\nhello", 5 << 19));
        one.ok("rm /mnt/*; umount /mnt");
        other.ok("umount /mnt");
    }
    assert_eq!((counter(&lab, "proxy_write_bytes"), counter(&lab, "proxy_read_bytes")), (0, 0));
    // The guest's kernel does not support flexible file layouts with several iods, so a file on several iods must take
    // the mgr path.
    lab.run(["mkdir", "/wide"]);
    lab.run(["policy", "set", "/wide", "stripe_count=3"]);
    one.mount(lab.mgr.proxy.address().port(), "vers=4.2");
    one.ok("cd /mnt/wide; cp /tmp/data f; echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/data f");
    assert!(counter(&lab, "proxy_write_bytes") >= 16 << 20);
    one.ok("umount /mnt");
    lab.fsck();
}

#[test]
fn striped_flexible_files_take_the_direct_path_to_several_iods() {
    let home = tempfile::tempdir().unwrap();
    let options = ["--kernel-layout", "flexfiles-striped", "--stripe-unit", "256k", "--mds-threshold", "0"];
    let lab = servers::start(home.path(), 3, &options);
    let mut guest = Guest::boot();
    if !guest.is_at_least([6, 18]) {
        println!("skipped: kernel {} does not know striped flexible files, 6.18 is the first that does", guest.kernel);
        return;
    }
    guest.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null");
    let remount = |guest: &mut Guest, version: &str| {
        guest.ok("umount /mnt");
        guest.mount(lab.mgr.proxy.address().port(), version);
    };
    for version in versions() {
        guest.mount(lab.mgr.proxy.address().port(), version);
        let stored = || servers::of_iods(&lab, "nfs.write_bytes");
        let before = stored();
        guest.ok("cp /tmp/data /mnt/f && sync");
        assert_eq!(guest.mountstats().pnfs, "LAYOUT_FLEX_FILES");
        // A third of the file's bytes must go to each iod. The iods report the number of written bytes to the mgr after
        // a short delay.
        servers::until(|| stored().into_iter().zip(&before).all(|(now, before)| now - before >= 5 << 20));
        assert_eq!(lab.run(["cat", "/f"]).len(), 16 << 20);
        guest.ok("echo hello > /mnt/g; dd if=/tmp/data of=/mnt/direct bs=1M count=5 oflag=direct 2>/dev/null");
        remount(&mut guest, version);
        guest.ok("cmp /tmp/data /mnt/f && head -c 5242880 /tmp/data | cmp - /mnt/direct && [ $(cat /mnt/g) = hello ]");
        guest.ok(
            "truncate -s 3000000 /mnt/f; dd if=/tmp/data of=/mnt/f bs=1M seek=4 count=1 conv=notrunc,fsync 2>/dev/null",
        );
        remount(&mut guest, version);
        guest.ok("(head -c 3000000 /tmp/data; head -c 1194304 /dev/zero; head -c 1048576 /tmp/data) | cmp - /mnt/f");
        guest.ok("rm /mnt/*; umount /mnt");
    }
    assert_eq!((counter(&lab, "proxy_write_bytes"), counter(&lab, "proxy_read_bytes")), (0, 0));
    lab.fsck();
}

#[test]
fn a_file_with_two_copies_is_read_without_one_of_its_iods() {
    let home = tempfile::tempdir().unwrap();
    let mut lab =
        servers::start(home.path(), 3, &["--kernel-layout", "flexfiles", "--mirrors", "2", "--mds-threshold", "0"]);
    let mut guest = Guest::boot();
    let port = lab.mgr.proxy.address().port();
    for version in versions() {
        guest.mount(port, version);
        let before = servers::number(&lab, "counters", "proxy_write_bytes");
        guest.ok("dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null");
        guest.ok("for i in 1 2 3; do cp /tmp/data /mnt/f$i; done; echo hello > /mnt/f");
        assert_eq!(guest.mountstats().pnfs, "LAYOUT_FLEX_FILES");
        guest.ok("umount /mnt");
        assert_eq!(servers::number(&lab, "counters", "proxy_write_bytes"), before);
        assert_eq!(lab.run(["cat", "/f2"]).len(), 8 << 20);
        // When any one of the iods is down, the other iods must still have all bytes of the file.
        for iod in 0..3 {
            lab.iods[iod].kill();
            servers::until(|| servers::iods_up(&lab) == 2);
            guest.mount(port, version);
            guest.ok("for i in 1 2 3; do cmp /tmp/data /mnt/f$i || exit 1; done; [ $(cat /mnt/f) = hello ]");
            guest.ok("umount /mnt");
            assert_eq!(lab.run(["cat", "/f"]), b"hello\n");
            lab.iods[iod].restart();
            servers::until(|| servers::iods_up(&lab) == 3);
        }
        // Weir's own client replaces the content of the file. The guest must see the new content, and must be able to
        // truncate the file.
        lab.put("/f", b"other words, and more of them");
        guest.mount(port, version);
        assert_eq!(guest.ok("cat /mnt/f; truncate -s 5 /mnt/f; cat /mnt/f"), "other words, and more of themother");
        guest.ok("rm /mnt/*; umount /mnt");
    }
    lab.fsck();
}
