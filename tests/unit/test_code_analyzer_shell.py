"""Scripts followed to the commands that they would run."""

from __future__ import annotations

import pytest

from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.shell import Shell
from schedmate.services.code_analyzer.resolve.values import HOLE
from schedmate.services.code_analyzer.source import Tree

FILES = {"env.sh": b"FROM=file\nexport GPUS=2\n", "n.txt": b"7\n", "list.txt": b"a\nb\nc\n", "sub/x.sh": b"run $1\n"}


def ran(script, *positional):
    shell = Shell(Files(Tree(FILES)), positional=list(positional))
    shell.run_text(script, "s.sh")
    return [[a.text for a in r.words] for r in shell.ran]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=1; run $A ${A} \"$A\" '$A'", ["run", "1", "1", "1", "$A"]),
        ("run ${A:-x} ${A-y} ${A:=z} $A ${A:+set} ${B:+set}", ["run", "x", "y", "z", "z", "set"]),
        ("A=model.tar.gz; run ${A%.gz} ${A%%.*} ${A#*.} ${A##*.} ${A/tar/zip} ${#A} ${A:0:5} ${A:6}", ["run", "model.tar", "model", "tar.gz", "gz", "model.zip.gz", "12", "model", "tar.gz"]),
        ("A=aB; run ${A^^} ${A,,} ${A^}", ["run", "AB", "ab", "AB"]),
        ("A=(x 'y z' w); run \"${A[@]}\" ${#A[@]} ${A[0]} ${A[-1]} ${A[*]:1:1}", ["run", "x", "y z", "w", "3", "x", "w", "y", "z"]),
        ('A=(x); A+=(y); A[2]=z; run "${A[@]}"', ["run", "x", "y", "z"]),
        ("declare -A M; M[a]=1; M[b]=2; K=b; run ${M[$K]} ${M[@]}", ["run", "2", "1", "2"]),
        ("A=1; A+=2; B=A; run $A ${!B}", ["run", "12", "12"]),
        ("N=4; run $((N*2+1)) $((N>3?5:6)) $(( N / 3 )) $(expr $N + 1) $(echo 3)", ["run", "9", "5", "1", "5", "3"]),
        ("let N=3*2; ((N+=1)); run $N", ["run", "7"]),
        ('f() { local x=$1; shift; run $x "$@" $#; }; f a b c', ["run", "a", "b", "c", "2"]),
        ("function g { echo got-$1; }; run $(g x)", ["run", "got-x"]),
        ("source env.sh; run $FROM $GPUS", ["run", "file", "2"]),
        ("run $(cat n.txt) $(<n.txt) $(wc -l < list.txt || echo 5) $(basename /a/b.sh .sh) $(dirname /a/b)", ["run", "7", "7", "5", "b", "/a"]),
        ("run $(seq 2 4) $(echo a,b | tr , ' ') $(cat list.txt | head -n 1) $(cat list.txt | wc -l)", ["run", "2", "3", "4", "a", "b", "a", "3"]),
        ("if [ -f n.txt ]; then run yes; else run no; fi", ["run", "yes"]),
        ("A=; if [[ $A == x* ]]; then run x; elif [ 3 -gt 2 ]; then run gt; fi", ["run", "gt"]),
        ("A=xy; [[ $A == x* && $A != xz ]] && run both", ["run", "both"]),
        ('[ -z "$A" ] && A=1; [ -n "$A" ] && run $A', ["run", "1"]),
        ('A=; [ ! -z "$A" ] || run empty', ["run", "empty"]),
        ("false || run after; true && false && run never", ["run", "after"]),
        ("case $1 in a|b) run ab;; *) run other;; esac", ["run", "ab"]),
        ("for x in only; do run $x; done", ["run", "only"]),
        ("set -- p q; run $2 $1", ["run", "q", "p"]),
        ("unset A; run ${A:-gone}; exit 0; run never", ["run", "gone"]),
        ('eval "run a b"', ["run", "a", "b"]),
        ("{ run in; } 2>&1 | tee log", ["run", "in"]),
        ("(run sub) > out", ["run", "sub"]),
        ("run a \\\n  b # comment\n", ["run", "a", "b"]),
        ("cat <<-EOF > x.txt\n\tone $1\n\tEOF\nrun $(cat x.txt)", ["run", "one", "a"]),
        ("cat > y.txt <<'EOF'\n$1\nEOF\nrun \"$(cat y.txt)\"", ["run", "$1"]),
        ("echo hi > z.txt; echo ho >> z.txt; run $(cat z.txt)", ["run", "hi", "ho"]),
        ("! false && run negated", ["run", "negated"]),
        ("run `echo tick` $'a b' a\\ b", ["run", "tick", "a b", "a b"]),
        ("X=1 Y=$1 run z", ["run", "z"]),
        ("while read line; do run $1; done < list.txt", ["run", "a"]),
        ("A='--x 1'; run $A", ["run", "--x", "1"]),
        ("set -o allexport; A=1; set +a; run $A", ["run", "1"]),
        ('A=x; [ "$A" = x ] && [ ! "$A" = y ] && run same', ["run", "same"]),
        ('A=; [ "$A" ] || run unset', ["run", "unset"]),
        ('A=abc; [[ "$A" =~ ^a ]] && run starts', ["run", "starts"]),
        ("A=1; [ -v A ] && run is-set", ["run", "is-set"]),
        ("[ 1 -lt 2 -a 3 -ge 3 ] && run both", ["run", "both"]),
        ("[ 1 -gt 2 -o 3 -ne 4 ] && run either", ["run", "either"]),
        ('HERE=$(cd "$(dirname "$0")" && pwd); run ${HERE:-x}', ["run", "."]),
        ('run $(echo abc | tr -d b) $(printf "%s-%s" a b)', ["run", "ac", "a-b"]),
        ("f() { return 0; }; f && run ok", ["run", "ok"]),
        ("f() { exit 3; run never; }; run first; f; run never", ["run", "first"]),
        ("export A=1 B; run $A", ["run", "1"]),
        ("readonly A=1; run $A", ["run", "1"]),
        (". sub/x.sh arg", ["run", "arg"]),
        ("pushd sub; popd; run there", ["run", "there"]),
        ("A=5; while [ $A -gt 100 ]; do run never; done; run after", ["run", "after"]),
        ('A=5; until [ $A -gt 1 ]; do run never; done; run $(printf "%s\\n" x y)', ["run", "x", "y"]),
        ('run $(printf "%05d" 7)', ["run", HOLE]),
        ('trap "run never" EXIT; run now', ["run", "now"]),
        ("cd sub && run here", ["run", "here"]),
        ("run $0 $? ${1} $#", ["run", "s.sh", "0", "a", "1"]),
    ],
)  # fmt: skip
def test_a_script_is_followed(script, words):
    assert ran(script, "a")[0] == words


@pytest.mark.parametrize(
    "script",
    ["run $(date)", "run $UNSET_OUTSIDE", "for x in a b; do run $x; done", "if [ $(hostname) = a ]; then A=1; else A=2; fi; run $A", "read A; run $A", "run ${A?must}", "case $(date) in a) B=1;; esac; run $B", "test -d /x && C=1; run $C", "run $((1/0))", "A=(1); run ${A[7]}"],
)  # fmt: skip
def test_what_only_running_could_tell_is_a_hole(script):
    assert HOLE in "".join(ran(script)[0])


@pytest.mark.parametrize(
    "script",
    [
        "if",
        "fi",
        "case",
        "((",
        "$((",
        "${",
        "'",
        '"',
        "<<",
        "f() {",
        "a | | b",
        ")",
        "for",
        "\\",
        "run <<X",
        "[[",
        "function",
    ],
)
def test_a_script_that_no_shell_would_take_ends(script):
    ran(script)
    ran(script + "\n" + "run x\n")
