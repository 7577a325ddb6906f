"""Operations of a mixture of experts, one device's part of each: routing, dispatch and combine, products of experts."""
