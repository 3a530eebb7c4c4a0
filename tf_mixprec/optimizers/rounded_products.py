"""Makes XLA round every product, as TensorFlow's own kernels do.

XLA on CPUs fuses `a * b + c` into one operation with one rounding. That is more
exact, but then a compiled update does not have the weights of the optimizer it
wraps. Passing a product through the integers keeps the two apart: an exclusive
or with a zero that the compiler does not know leaves every bit as it is, and in
a loop that waits for memory it takes no time.
"""

from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_PRODUCTS = ("Mul", "MulNoNan", "Pow", "Square", "SquaredDifference")


def zeros() -> list[Any]:
    """Returns the `zeros` of `import_rounded`."""
    return [tf.zeros((), dtype) for dtype in _integers().values()]


def import_rounded(
    graph: Any, names: list[str], tensors: list[Any], zeros: list[Any]
) -> None:
    """Imports a graph into the one being traced, rounding its products.

    Args:
        graph: The `GraphDef` of a function that returns nothing.
        names: The names of its inputs.
        tensors: What to give it for them.
        zeros: Scalar int32 and int64 tensors, both 0, that are inputs of the
            function being traced and so not known to its compiler.
    """
    rounded = _rounded(graph, skip=set(names))
    fed = {
        **dict(zip(names, tensors, strict=True)),
        **{_zero_name(zero.dtype): zero for zero in zeros},
    }
    # TensorFlow refuses what the graph has no use for.
    used = {name.split(":")[0] for node in rounded.node for name in node.input}
    tf.graph_util.import_graph_def(
        rounded,
        input_map={f"{n}:0": t for n, t in fed.items() if n in used},
        name="",
    )


def _integers() -> dict[Any, Any]:
    """Returns the integer type as wide as each float type."""
    return {tf.float32: tf.int32, tf.float64: tf.int64}


def _zero_name(dtype: Any) -> str:
    return f"rounded_products_zero_{dtype.name}"


def _rounded(graph: Any, skip: set[str]) -> Any:
    """Returns a copy of the graph in which users of a product see it rounded.

    Args:
        graph: A `GraphDef`.
        skip: Names of nodes to leave out.
    """
    result = tf.compat.v1.GraphDef(
        versions=graph.versions, library=graph.library
    )
    products = {
        node.name: tf.as_dtype(node.attr["T"].type)
        for node in graph.node
        if node.op in _PRODUCTS
        and tf.as_dtype(node.attr["T"].type) in _integers()
    }
    for node in graph.node:
        if node.name in skip:
            continue
        copy = result.node.add()
        copy.CopyFrom(node)
        for i, name in enumerate(copy.input):
            if name.split(":")[0] in products:
                copy.input[i] = _rounded_name(name.split(":")[0])
        if node.name in products:
            _add_rounding(result, node.name, products[node.name])
    return result


def _rounded_name(name: str) -> str:
    return f"{name}/rounded_product"


def _add_rounding(graph: Any, name: str, dtype: Any) -> None:
    """Adds the way through the integers after a product."""
    integer = _integers()[dtype]
    rounded = _rounded_name(name)
    for node_name, op, inputs, attributes in (
        (f"{rounded}/bits", "Bitcast", [name], {"T": dtype, "type": integer}),
        (
            f"{rounded}/same_bits",
            "BitwiseXor",
            [f"{rounded}/bits", _zero_name(integer)],
            {"T": integer},
        ),
        (
            rounded,
            "Bitcast",
            [f"{rounded}/same_bits"],
            {"T": integer, "type": dtype},
        ),
    ):
        node = graph.node.add(name=node_name, op=op, input=inputs)
        for key, value in attributes.items():
            node.attr[key].type = value.as_datatype_enum
