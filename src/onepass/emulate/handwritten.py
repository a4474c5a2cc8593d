"""Hand-written CUDA C++ in the emulator: which kernels a file has, what of it is outside the subset, and compiling one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from onepass.emulate.compile import build, scratch_folder
from onepass.emulate.launch import EmulatedKernel, KernelSource
from onepass.errors import BadLaunch, CannotCheck, CompileError, NoSuchKernel

# A pattern over the code without comments and strings, what it is called, and why it is refused.
REFUSED: tuple[tuple[str, str, str], ...] = (
    (r"\bcooperative_groups\b", "cooperative groups", "grid and tile groups are not emulated"),
    (r"\basm\b|\b__asm__\b|\b__asm\b", "inline PTX", "the emulator reads CUDA C++, not PTX"),
    (r"\bnvcuda\b|\bwmma\b|\bmma_sync\b", "tensor cores (wmma)", "matrix instructions are not emulated"),
    (
        r"\bcuda::(?:barrier|pipeline|ptx|atomic|atomic_ref|memcpy_async|std)\b|\bcuda::",
        "libcu++ (cuda::)",
        "asynchronous copies, its barriers and atomics are not emulated",
    ),
    (r"\b__pipeline_\w+|\bcp_async\w*|\bCUtensorMap\b|\b__cp_async\w*", "asynchronous copies (cp.async, TMA)",
     "copies that complete later are not emulated"),
    (r"\b__cluster_dims__\b|\bcluster_group\b", "thread-block clusters", "blocks run one after another"),
    (r"\bcudaTextureObject_t\b|\btexture\s*<|\btex[123]D\w*\s*[<(]|\bsurf[123]D\w*\s*[<(]|\bcudaSurfaceObject_t\b",
     "textures and surfaces", "their addressing and filtering are not emulated"),
    (r"\b__activemask\b", "__activemask()", "which lanes run together is the device's choice: pass the mask along"),
    (r"\b__shfl(?:_up|_down|_xor)?\s*\(|\b__(?:any|all|ballot)\s*\(", "warp functions without _sync",
     "devices since Volta have none of them: use the _sync form with a mask"),
    (r"\bclock(?:64)?\s*\(|\b__globaltimer\b", "clocks", "time is not emulated"),
    (r"\bcurand\w*", "cuRAND", "its generators are not emulated"),
    (r"\b(?:cub|thrust|cutlass|cute)::", "a device library (cub, thrust, CUTLASS)", "only the file itself is compiled"),
    (r"\b__managed__\b", "__managed__ variables", "memory shared with the host is not emulated"),
    (r"\b(?:malloc|free)\s*\(|\bnew\s+\w|\bdelete\b", "device-side allocation", "the device heap is not emulated"),
    (r"\b__constant__[^;={(]*;", "__constant__ without a value", "nothing copies to it here: initialise it in the file"),
    (r"\bvprintf\b|\b__prof_trigger\b", "profiling calls", "they are not emulated"),
)  # fmt: skip

# Headers that a kernel may include: these are read, …
_STANDARD = re.compile(
    r"cfloat|climits|cstdint|cstddef|limits|type_traits|utility|(?:float|limits|stdint|stddef)\.h"
)
# … and what these declare is in cuda_library_on_host.hpp, or is for the host functions, which are left out.
_KNOWN = re.compile(
    r"(?:cuda|cuda_runtime|cuda_runtime_api|device_launch_parameters|device_functions|vector_types|vector_functions"
    r"|math_constants|math_functions|math|assert|stdio|stdlib|string)\.h|cuda_(?:fp16|bf16)\.(?:h|hpp)"
    r"|cmath|cassert|cstdio|cstdlib|cstring|iostream|vector|string|algorithm|random|chrono|iomanip|sstream|fstream"
    r"|numeric|functional|memory"
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"].*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.MULTILINE)
_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.DOTALL)
_EXTERN_SHARED = re.compile(
    r"extern\s+((?:(?!__shared__)[^;{}])*?)__shared__\s+([^;\[]*?)(\w+)\s*\[\s*\]\s*;"
)
_VARIABLE = re.compile(
    r"\b__device__(?=\s+(?:(?:__align__|alignas)\s*\(\w+\)\s*)?(?!const\b|constexpr\b)"
    r"[^;(){}=]*?\b(\w+)\s*(?:\[[^;(){}=]*\]\s*)*[=;])"
)
_BEFORE_NAME = frozenset(("__launch_bounds__", "__align__", "__maxnreg__", "__block_size__", "__attribute__"))
_ELEMENTS = ("other", "signed", "unsigned", "float", "half", "bf16", "bool")

# -fno-tree-sra: a float4 read as a whole stays one access. -fsanitize=bounds: an index past an array's declared length.
_FLAGS = (
    "-fno-tree-sra",
    "-fno-ipa-sra",
    "-fsanitize=bounds",
    "-fno-strict-aliasing",
    "-fstack-protector-strong",  # a local array written past its end
    "-Wno-subobject-linkage",
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: a pointer to elements, or a scalar that is an element itself."""

    name: str
    pointer: bool
    read_only: bool  # const: what the pointer leads to is only read
    element: str  # signed, unsigned, float, half, bf16, bool, other
    element_bytes: int
    nbytes: int  # of the parameter itself


@dataclass(frozen=True)
class Declared:
    """A `__global__` function as the file has it."""

    name: str
    parameters: tuple[str, ...]  # names
    kinds: tuple[str, ...]  # the type's last word: a struct's name where a struct is passed by value
    line: int
    template: bool


@dataclass(frozen=True)
class HandwrittenKernel:
    """A kernel of a file, compiled for the CPU, and what it wants to be called with."""

    declared: Declared
    parameters: tuple[Parameter, ...]
    emulated: EmulatedKernel
    variables: tuple[str, ...]  # the file's __device__ variables, which outlive a launch


def compile_handwritten(
    text: str,
    kernel: str | None = None,
    file: str = "kernel.cu",
    arch: int = 90,
    cache_dir: Path | str | None = None,
    defines: Mapping[str, str] = MappingProxyType({}),
) -> HandwrittenKernel:
    """Compile one kernel of a CUDA C++ file for the CPU.

    `kernel` names it, with its template arguments if it has some (`k<256>`); left out, the file has one alone.
    Functions of the host are left out. `file` is what messages call it; `defines` are macros, as by -D. A struct passed by
    value counts as its fields, each a pointer or a number.

    Raises: NoSuchKernel, BadLaunch for a template without arguments, CannotCheck with the line of what is outside the
    subset (`REFUSED`), NoCompiler.
    """
    code = without_comments(text)
    refuse(text, code, file)
    declared, expression = _choose(code, kernel, file)
    own = KernelSource(declared.name, text)
    unit = _translation_unit(text, code, declared.name, expression, arch, defines)
    try:
        path = build([own], unit, _FLAGS, scratch_folder(cache_dir))
    except CompileError as error:
        raise _not_compiled(error, file) from error
    emulated = EmulatedKernel(path, own, 0)
    parameters = tuple(_parameters(emulated, declared, code, file))
    return HandwrittenKernel(declared, parameters, emulated, _variables(code))


def without_comments(text: str) -> str:
    """The text with comments and strings blanked: every other character stays where it was."""
    return _COMMENT_OR_STRING.sub(lambda m: _blank(m.group()), text)


def refuse(text: str, code: str, file: str) -> None:
    """Raise CannotCheck at the first construct that the emulator does not know."""
    device = _without_device_only(_without_host_functions(code, code))
    hits = [(m.start(), construct, why) for p, construct, why in REFUSED for m in [re.search(p, device)] if m]
    launch = re.search(r"<<<", device)
    if launch:
        hits.append(
            (launch.start(), "dynamic parallelism (<<<…>>> in a kernel)", "kernels start no kernels here")
        )
    for m in _INCLUDE.finditer(text):
        if (
            not (_STANDARD.fullmatch(m.group(2)) or _KNOWN.fullmatch(m.group(2)))
            and code[m.start() : m.end()].strip()
        ):
            hits.append(
                (m.start(), f'#include "{m.group(2)}"', "only the file itself is compiled: paste it in")
            )
    if hits:
        at, construct, why = min(hits)
        line = text.count("\n", 0, at) + 1
        raise CannotCheck(file, line, text.splitlines()[line - 1].strip(), construct, why)


def kernels_of(code: str) -> list[Declared]:
    """The `__global__` functions that a text without comments defines, in their order; none that a macro makes."""
    code = _DIRECTIVE.sub(lambda m: _blank(m.group()), code)
    found = (_declared(code, m.end()) for m in re.finditer(r"\b__global__\b", code))
    return [declared for declared, defined in (f for f in found if f) if defined]


def _declared(code: str, at: int) -> tuple[Declared, bool] | None:
    """The function whose `__global__` ends at `at`, and whether its body follows."""
    for m in re.finditer(r"(\w+)\s*(<[^;{}()]*>)?\s*\(", code[at:]):
        opening = at + m.end() - 1
        closing = _matching(code, opening)
        if m.group(1) in _BEFORE_NAME or opening < _end_of_skipped(code, at):
            continue
        words = [_words(p) for p in _split(code[opening + 1 : closing])]
        names, kinds = tuple(w[-1] for w in words), tuple(w[-2] for w in words)
        head = code[: at - len("__global__")].rstrip()
        line = code.count("\n", 0, at + m.start()) + 1
        is_template = bool(re.search(r"template\s*<[^;{}]*>\s*(?:static\s*|inline\s*|extern\s*)*$", head))
        return Declared(m.group(1), names, kinds, line, is_template), code[closing + 1 :].lstrip().startswith(
            "{"
        )
    return None


def _end_of_skipped(code: str, at: int) -> int:
    """Where `__launch_bounds__(…)` and its like end that follow `__global__`."""
    end = at
    for m in re.finditer(r"(\w+)\s*\(", code[at : code.find("{", at)]):
        if m.group(1) in _BEFORE_NAME:
            end = _matching(code, at + m.end() - 1)
    return end


def _choose(code: str, kernel: str | None, file: str) -> tuple[Declared, str]:
    """The kernel asked for, or the only one, and the C++ expression that names it."""
    known = kernels_of(code)
    names = tuple(dict.fromkeys(k.name for k in known))
    asked = kernel.partition("<")[0].split("::")[-1].strip() if kernel else None
    made = re.search(r"^[ \t]*#[ \t]*define\b(?:.*\\\n)*.*\b__global__\b", code, re.MULTILINE)
    if made and (not known or (asked is not None and asked not in names)):
        line = code.count("\n", 0, made.start()) + 1
        shown = code.splitlines()[line - 1].strip()
        raise CannotCheck(file, line, shown, "a kernel that a macro makes", "write the function out")
    if not known or (asked is None and len(names) > 1) or (asked is not None and asked not in names):
        nearest = difflib.get_close_matches(asked or "", names, 1)
        raise NoSuchKernel(file, kernel or "", names, nearest[0] if nearest else "")
    declared = next(k for k in known if k.name == (asked or names[0]))
    expression = kernel or declared.name
    if not declared.template or "<" in expression:
        return declared, expression
    instantiated = re.search(rf"\btemplate\s+__global__[^;{{}}]*\b{declared.name}\s*(<[^;()]*>)\s*\(", code)
    if instantiated is None:
        remedy = f"Instantiate it in the file, or name them: --kernel '{declared.name}<256>'."
        raise BadLaunch(f"{file}:{declared.line}", f"the template {declared.name} has no arguments", remedy)
    return declared, declared.name + instantiated.group(1)


def _translation_unit(
    text: str, code: str, name: str, expression: str, arch: int, defines: Mapping[str, str]
) -> str:
    """The file's device code between CUDA's names and a way in; every line keeps its number."""
    standard = dict.fromkeys(m.group(2) for m in _INCLUDE.finditer(text) if _STANDARD.fullmatch(m.group(2)))
    own = _INCLUDE.sub("", _with_sections(code, _without_host_functions(code, text)))
    own = _EXTERN_SHARED.sub(_dynamic_shared, own)
    includes = "".join(f"#include <{header}>\n" for header in standard)
    macros = "".join(f"#define {n} {v}\n" for n, v in defines.items())
    return f"""\
{includes}#include "cuda_on_host.hpp"
#include "ptx_on_host.hpp"
#include "cuda_library_on_host.hpp"
#define __CUDA_ARCH__ {arch * 10}
#define LIB(f) __builtin_##f
#define __shared__ static __thread
#define __syncthreads() onepass_barrier(uint64_t(__COUNTER__) << 32 | __LINE__)
{macros}namespace {{
#line 1 "0_{name}.cu"
{own}
#line 1 "entry"
void onepass_entry(const void* args) {{ onepass_call({expression}, args); }}
}}
#define ONEPASS_VISIBLE extern "C" __attribute__((visibility("default")))
ONEPASS_VISIBLE OnepassKernel onepass_kernel_0;
OnepassKernel onepass_kernel_0 = {{onepass_entry, nullptr, nullptr}};
__attribute__((visibility("default"), used)) auto onepass_known __asm__("onepass_parameters_0")
    = onepass_parameters({expression});
{_variable_table(_variables(code))}"""


def _variables(code: str) -> tuple[str, ...]:
    """The `__device__` variables that a text without comments defines."""
    return tuple(dict.fromkeys(m.group(1) for m in _VARIABLE.finditer(code)))


def _with_sections(code: str, text: str) -> str:
    """Each `__device__` variable in a section of its own, whose bounds the linker knows."""
    for m in reversed(list(_VARIABLE.finditer(code))):
        section = f'__attribute__((section("onepass_{m.group(1)}")))'
        text = text[: m.start()] + section + text[m.end() :]
    return text


def _variable_table(names: Sequence[str]) -> str:
    """Where each variable begins and ends; null where the compiler has dropped it."""
    if not names:
        return ""
    bounds = [f"__{end}_onepass_{name}" for name in names for end in ("start", "stop")]
    declared = "".join(
        f'extern "C" unsigned char {b}[] __attribute__((weak, visibility("hidden")));\n' for b in bounds
    )
    return f"{declared}ONEPASS_VISIBLE void* onepass_variables[];\nvoid* onepass_variables[] = {{{', '.join(bounds)}}};\n"


def _dynamic_shared(declaration: re.Match[str]) -> str:
    """`extern __shared__ T name[];` as a pointer into the runtime's buffer, on as many lines."""
    qualifiers, kind, name = declaration.groups()
    pointee = re.sub(r"__align__\s*\(\w+\)|alignas\s*\(\w+\)", "", f"{qualifiers} {kind}").strip()
    lines = "\n" * declaration.group().count("\n")
    return (
        f"{' '.join(pointee.split())}* const {name} = onepass_dynamic<{' '.join(pointee.split())}>();{lines}"
    )


def _not_compiled(error: CompileError, file: str) -> CannotCheck:
    """The host compiler's first complaint about the file, as a refusal at its line."""
    lines = error.source.splitlines()
    name = re.escape(f"0_{error.kernel}.cu")
    # A template or macro of the headers fails where the file uses it, which the compiler says around its error.
    m = re.search(rf"^{name}:(\d+):(?:\d+:)?\s*(?:fatal )?error: (.*)$", error.message, re.MULTILINE)
    near = m or re.search(rf"\b{name}:(\d+):", error.message)
    number = int(near.group(1)) if near else 0
    said = (
        m.group(2)
        if m
        else re.search(r"(?:error|undefined reference to|multiple definition of):? ?(.*)", error.message)
    )
    what = (
        said
        if isinstance(said, str)
        else said.group().strip()
        if said
        else error.message.strip().splitlines()[0]
    )
    shown = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return CannotCheck(file, number, shown, "this does not compile for the CPU", what)


def _parameters(emulated: EmulatedKernel, declared: Declared, code: str, file: str) -> Iterator[Parameter]:
    for name, kind, raw in zip(declared.parameters, declared.kinds, emulated.parameters(), strict=True):
        pointer, read_only, element, element_bytes, nbytes = raw
        if pointer or _ELEMENTS[element] != "other":
            yield Parameter(name, bool(pointer), bool(read_only), _ELEMENTS[element], element_bytes, nbytes)
        else:
            yield from _fields(code, kind, file)


# C types of a struct's fields, by the names that kernels and the prelude give them: element and bytes.
_FIELD_TYPES: dict[str, tuple[str, int]] = {
    "float": ("float", 4),
    "double": ("float", 8),
    "int": ("signed", 4),
    "i32": ("signed", 4),
    "unsigned": ("unsigned", 4),
    "u32": ("unsigned", 4),
    "long long": ("signed", 8),
    "i64": ("signed", 8),
    "u64": ("unsigned", 8),
    "size_t": ("unsigned", 8),
    "f16": ("half", 2),
    "__half": ("half", 2),
    "half": ("half", 2),
    "bf16": ("bf16", 2),
    "__nv_bfloat16": ("bf16", 2),
    "i16": ("signed", 2),
    "i8": ("signed", 1),
    "u8": ("unsigned", 1),
    "bool": ("bool", 1),
    "unsigned int": ("unsigned", 4),
    "int32_t": ("signed", 4),
    "uint32_t": ("unsigned", 4),
    "long": ("signed", 8),
    "unsigned long": ("unsigned", 8),
    "unsigned long long": ("unsigned", 8),
    "int64_t": ("signed", 8),
    "uint64_t": ("unsigned", 8),
    "short": ("signed", 2),
    "int16_t": ("signed", 2),
    "unsigned short": ("unsigned", 2),
    "uint16_t": ("unsigned", 2),
    "char": ("signed", 1),
    "signed char": ("signed", 1),
    "int8_t": ("signed", 1),
    "unsigned char": ("unsigned", 1),
    "uint8_t": ("unsigned", 1),
    "nv_bfloat16": ("bf16", 2),
}
_FIELD = re.compile(
    r"\s*(const\s+)?([\w ]+?)(\s+const)?\s*(\*?)\s*(?:const\s+)?(?:__restrict__\s*)?(\w+)\s*(?:=[^,]*)?$"
)


def _fields(code: str, kind: str, file: str) -> Iterator[Parameter]:
    """The fields of a struct that a kernel takes by value.

    Raises: BadLaunch for a field whose type is no number and no pointer to numbers.
    """
    body = re.search(rf"\bstruct\s+{re.escape(kind)}\s*{{([^{{}}]*)}}", code)
    for declaration in (body.group(1) if body else f"{kind};").split(";")[:-1]:
        m = _FIELD.match(declaration)
        if m is None or m.group(2) not in _FIELD_TYPES:
            shown = " ".join(declaration.split())
            problem = f"the struct {kind} is passed by value, and its field `{shown}` is not understood"
            remedy = "Give each field a line of its own, a number or a pointer to numbers, and no functions."
            raise BadLaunch(file, problem, remedy)
        element, nbytes = _FIELD_TYPES[m.group(2)]
        pointer, read_only = bool(m.group(4)), bool(m.group(1) or m.group(3))
        yield Parameter(m.group(5), pointer, read_only, element, nbytes, 8 if pointer else nbytes)


# Reading C++ as far as needed


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _matching(code: str, opening: int) -> int:
    """Where the bracket that opens at `opening` closes; the end of the text if it does not."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    opens, closes, depth = code[opening], pairs[code[opening]], 0
    for at in range(opening, len(code)):
        depth += (code[at] == opens) - (code[at] == closes)
        if depth == 0:
            return at
    return len(code) - 1


def _split(parameters: str) -> Iterator[str]:
    """A parameter list at its outer commas."""
    depth, start = 0, 0
    for at, c in enumerate(parameters):
        depth += (c in "(<[") - (c in ")>]")
        if c == "," and depth == 0:
            yield parameters[start:at]
            start = at + 1
    if parameters[start:].strip():
        yield parameters[start:]


def _words(parameter: str) -> list[str]:
    """The words of a parameter, two at least; the last is its name."""
    words = re.findall(r"\w+", parameter.partition("=")[0].partition("[")[0])
    return ["", "", *words]


def _host_functions(code: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each function that runs on the host: kernels can't call it, and it may use what is not here."""
    macros = re.findall(r"#[ \t]*define[ \t]+(\w+)[^\n]*\b__(?:device|global)__", code)
    of_device = re.compile(rf"\b(?:{'|'.join(['__global__', '__device__', 'constexpr', *macros])})\b")
    at, start = 0, 0
    while at < len(code):
        if code[at] in ";}":
            start = at + 1
        elif code[at] == "{":
            head = _DIRECTIVE.sub("", code[start:at])
            if re.search(r"\bnamespace\b[^()]*$|\bextern\s*$", head):  # `extern "C" {`, its string blanked
                start = at + 1
            else:
                end = _matching(code, at)
                if _is_function(head) and not of_device.search(head):
                    yield start, end + 1
                at, start = end, end + 1
        at += 1


def _without_host_functions(code: str, text: str) -> str:
    """The text without them; preprocessor lines and line numbers stay."""
    for begin, end in _host_functions(code):
        text = text[:begin] + _blank_but_directives(text[begin:end]) + text[end:]
    return text


def _without_device_only(code: str) -> str:
    """Without what `#ifndef ONEPASS_ON_HOST` holds: the prelude of generated kernels keeps its PTX there."""
    lines, depth, inside = code.split("\n"), 0, 0  # inside: the depth of the #ifndef that is open
    for i, line in enumerate(lines):
        depth += bool(re.match(r"\s*#\s*if", line))
        if not inside and re.match(r"\s*#\s*ifndef\s+ONEPASS_ON_HOST\b", line):
            inside = depth
        if inside:
            lines[i] = " " * len(line)
            ends = r"\s*#\s*(?:endif|else|elif)" if depth == inside else r"(?!)"
            inside = 0 if re.match(ends, line) else inside
        depth -= bool(re.match(r"\s*#\s*endif", line))
    return "\n".join(lines)


def _is_function(head: str) -> bool:
    return "(" in head and not re.search(r"\b(?:struct|class|union|enum)\b[^()]*$|=\s*$|\boperator\b", head)


def _blank_but_directives(text: str) -> str:
    """Blanks of the same length, so that later places stay where they were."""
    return "\n".join(line if line.lstrip().startswith("#") else " " * len(line) for line in text.split("\n"))
